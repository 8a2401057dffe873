"""What is seen around a host: interpreters, and the space that a lock needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.containers.engine import cdi
from envbuilder.core.errors import ToolError
from envbuilder.core.settings import Settings
from envbuilder.doctor import surroundings
from envbuilder.host import interpreters
from envbuilder.host.model import Containers
from envbuilder.packages.interpreters import SOURCE
from envbuilder.profiles.lock import File, Lock
from tests.support.broken_hosts import BY_NAME, LINUX as HOST
from tests.support.shipped import shipped_lock

CPU = BY_NAME["cpu"]


@pytest.fixture
def lock() -> Lock:
    return shipped_lock("cpu")


PYTHON = File(
    kind="python", name="cpython", version="3.11.16", source=SOURCE, provenance="claim",
    by="a test", file="20260814/cpython-3.11.16.tar.gz", sha256="0" * 64, size=3 << 20,
)  # fmt: skip


def with_python(lock: Lock, interpreter: File | None = PYTHON) -> Lock:
    return replace(lock, targets=tuple(replace(t, interpreter=interpreter) for t in lock.targets))


@pytest.mark.parametrize("managed", [False, True])
def test_a_managed_interpreter_needs_space(found: Settings, lock: Lock, managed: bool) -> None:
    profile = replace(CPU, python=replace(CPU.python, managed=managed))
    needed = [
        max(disk.needed for disk in surroundings._rooms(profile, each, HOST, found))
        for each in (lock, with_python(lock))
    ]
    assert (needed[1] > needed[0]) == managed


@pytest.mark.parametrize(
    ("managed", "here", "locked", "said"),
    [
        (False, True, False, ""),
        (False, False, True, ""),
        (False, False, False, "there is no Python here"),
        (True, False, True, ""),
        (True, True, False, "the lock of 'cpu' has no interpreter for linux/amd64"),
    ],
)
def test_an_interpreter_is_of_the_machine_or_of_the_lock(
    lock: Lock, monkeypatch: pytest.MonkeyPatch, managed: bool, here: bool, locked: bool, said: str
) -> None:
    def find(*_: object) -> None:
        assert not managed
        if not here:
            raise ToolError("there is no Python here", "Install one.")

    monkeypatch.setattr(interpreters, "find", find)
    profile = replace(CPU, python=replace(CPU.python, managed=managed))
    text, fix = surroundings._python(profile, with_python(lock) if locked else lock, HOST)
    assert (text[: len(said)], bool(text), bool(fix)) == (said, bool(said), bool(said))


def test_what_a_check_may_look_at(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: all}]\n")
    monkeypatch.setattr(cdi, "FOLDERS", (tmp_path,))
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    around = surroundings.look(None, None, replace(HOST, containers=Containers()), found)
    assert around.looked
    assert around.devices == {"nvidia.com/gpu=all"}
    assert around.variables["HSA_OVERRIDE_GFX_VERSION"] == "10.3.0"
    assert around.has("sh")
    assert not around.has("no-such-program")
