"""Containers that podman cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.engine import podman_run
from envbuilder.core import process
from envbuilder.core.errors import EnvbuilderError, ToolError, VerifyError
from envbuilder.core.process import Completed

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", ToolError),
        ("Error: stat /dev/dri: no such file or directory", ToolError),
        ("Error: x: image not known", VerifyError),
    ],
)
def test_what_podman_cannot_start_is_told(text: str, kind: type[Exception]) -> None:
    assert isinstance(podman_run.not_started(text), kind)


NO_DEVICE = "Error: stat /dev/kfd: no such file or directory"
NO_GPUS = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"


@pytest.mark.parametrize(
    ("code", "words", "exit_code", "message"),
    [
        # The client's own: the payload never started.
        (125, NO_GPUS, 4, "podman does not know the device"),
        (125, "Error: x: image not known", 5, "the container cannot be started: Error: x: image"),
        (126, "Error: exec: permission denied", 5, "the container cannot be started"),
        (126, NO_DEVICE, 4, "podman cannot give the container its device"),
        (127, NO_DEVICE, 4, "podman cannot give the container its device"),
        (127, 'Error: "python": not found in $PATH', 5, "the container cannot be started"),
        (127, "", 5, "the container cannot be started"),
        # The payload's, which its report is compared with.
        *((code, "killed", None, "") for code in (0, 1, 5, 128, 130, 134, 137, 139, 143, 255)),
        *((code, "killed", None, "") for code in (-9, -15)),
    ],
)
@pytest.mark.parametrize("timed_out", [False, True])
def test_every_end_of_podmans_client(
    code: int,
    words: str,
    exit_code: int | None,
    message: str,
    timed_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Sequence[str]] = []

    def client(argv: Sequence[str], **options: Any) -> Completed:
        del options
        calls.append(argv)
        facts: dict[str, Any] = {"stdout": "", "stderr": words, "seconds": 1.0}
        return Completed(argv=(), returncode=code, timed_out=timed_out, **facts)

    monkeypatch.setattr(process, "run", client)
    arguments = (["podman"], ["--shm-size", "1g"], "x:1", ["verify"], print, 9.0)
    if exit_code is None or timed_out:
        assert podman_run.run(*arguments).returncode == code
    else:
        with pytest.raises(EnvbuilderError) as failed:
            podman_run.run(*arguments)
        assert failed.value.exit_code == exit_code
        assert failed.value.message.startswith(message)
    # Whatever it was, no container is left.
    started, removed = calls
    name = started[started.index("--name") + 1]
    assert (removed[1], removed[-1]) == ("rm", name)
