"""What every engine does the same way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.containers.engine.docker import DockerEngine
from envbuilder.containers.engine.interface import Endpoint, Engine, short
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.core import process
from envbuilder.core.errors import BuildError, EnvbuilderError
from tests.support.engines import BARE, FakeEngine
from tests.unit.containers.engine.conftest import started


def test_a_tag_is_forgotten_if_the_engine_has_it() -> None:
    engine = FakeEngine("x:1")
    engine.forget("x:1")
    engine.forget("x:1")
    assert engine.done == ["remove x:1"]


def test_only_the_image_that_was_chosen_is_removed() -> None:
    engine = FakeEngine("x:1")
    for ref, only in (("x:1", "sha256:other"), ("y:1", "sha256:y:1")):
        with pytest.raises(BuildError, match=f"{ref} now refers to another image, or to none"):
            engine.remove(ref, only=only)
    assert engine.done == []
    engine.remove("x:1", only="sha256:x:1")
    assert engine.done == ["remove x:1"]


def test_an_engine_is_closed_with_its_scope() -> None:
    with FakeEngine() as engine:
        assert not engine.closed
    assert engine.closed


DAEMON = "docker: Error response from daemon: "
HELP = "\n\nRun 'docker run --help' for more information"
NO_DEVICE = "Error: stat /dev/kfd: no such file or directory"
ENDS = {
    "docker": [
        (125, f'{DAEMON}could not select device driver "" with capabilities: [[gpu]]{HELP}', 4),
        (125, f"{DAEMON}CDI device injection failed: unresolvable CDI devices amd.com/gpu", 4),
        (127, f"{DAEMON}nvidia-container-cli: initialization error: nvml error", 4),
        (125, f"{DAEMON}no such image", 5),
        (127, f'{DAEMON}exec: "python": executable file not found in $PATH', 5),
        (125, "error waiting for container: unexpected EOF", 5),
    ],
    "podman": [
        (125, "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", 4),
        (127, NO_DEVICE, 4),
        (125, "Error: x: image not known", 5),
        (127, "", 5),
    ],
}
BY_ITSELF = (0, 5, 128, 137, 255, -9)
"""Exit codes of a payload or of a killed client: a report is compared with them."""


@pytest.mark.parametrize(
    ("client", "code", "words", "exit_code"),
    [
        *((client, *end) for client, ends in ENDS.items() for end in ends),
        *((client, code, "killed", None) for client in ENDS for code in BY_ITSELF),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_every_end_of_a_client(
    client: str,
    code: int,
    words: str,
    exit_code: int | None,
    late: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = started(monkeypatch, code, words, late=late)
    monkeypatch.setattr(process, "which", lambda program: program)
    sdk: Any = SimpleNamespace(api=None, close=lambda: None)
    engine: Engine = (
        DockerEngine(sdk, "26.1.5", Endpoint(url="unix:///x"))
        if client == "docker"
        else PodmanEngine(["podman"], rootless=False)
    )
    container = replace(BARE, arguments=("verify",))
    if exit_code is None or late:
        assert engine.run(container, print, 9.0).returncode == code
    else:
        with pytest.raises(EnvbuilderError) as failed:
            engine.run(container, print, 9.0)
        assert failed.value.exit_code == exit_code
        reason = words.removeprefix(DAEMON).removesuffix(HELP)
        assert failed.value.message.endswith(f": {reason}")
    # Whatever it was, no container is left.
    (argv, _), (removal, _) = calls
    assert argv[-2:] == ["x:1", "verify"]
    assert removal[1] == "rm"
    assert removal[-1] == argv[argv.index("--name") + 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "permission denied"),
        ("first line\nsecond line", "first line"),
        ("", "OSError"),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_failure_is_told_in_a_few_words(text: str, said: str) -> None:
    assert short(OSError(text)) == said
