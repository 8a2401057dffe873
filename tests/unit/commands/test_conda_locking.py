"""What `lock` prints of conda locks, and with which exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.commands import lock as locks
from envbuilder.core import resources
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.locks import conda
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.conda.lock import Lock, Package, Target
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings

CPU = profiles.load("cpu", [resources.profiles_dir()])


def lock_of(version: str = "1.0", **changes: Any) -> Lock:
    package = Package(
        name="python", version=f"3.11.{version}", build="0", build_number=0, subdir="linux-64",
        file=f"python-3.11.{version}-0.conda", channel="conda-forge", sha256="0" * 64, size=1,
    )  # fmt: skip
    target = Target(platform="linux/amd64", python="3.11", virtual_packages={}, packages=(package,))
    made = Lock(
        schema=1, profile="cpu", inputs="0" * 64, channels=("conda-forge",), targets=(target,)
    )
    return replace(made, **changes)


def entry_of(folder: Path, name: str, *, required: bool = False) -> conda.Entry:
    path = folder / f"default.{name}.conda.json"
    profile = replace(CPU, name=name)
    return conda.Entry(
        label=f"default.{name}", profile=profile, origin=profile, path=path, required=required,
        earlier=path if path.is_file() else None,
    )  # fmt: skip


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Lock | None, Lock] | Exception]:
    """What solving each profile comes to."""
    stated: dict[str, tuple[Lock | None, Lock] | Exception] = {}

    def solved(entry: conda.Entry, *_: Any, **options: Any) -> tuple[Lock | None, Lock]:
        result = stated[entry.profile.name]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(conda, "solved", solved)
    return stated


def test_what_changed_is_written_and_said(
    results: dict[str, Any], found: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"linux/arm64 3.11": "conda-forge has no x for linux-aarch64"}
    results["cpu"] = lock_of("1"), lock_of("2", missing=missing)
    path = tmp_path / "default.cpu.conda.json"
    assert locks.settle_conda([entry_of(tmp_path, "cpu")], found, upgrade=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"default.cpu: locked, 1 targets, 1 conda packages → {path}",
        "  python 3.11.1 → 3.11.2",
        "  not for linux/arm64 3.11: conda-forge has no x for linux-aarch64",
    ]
    assert conda_lock.load(path) == results["cpu"][1]
    results["cpu"] = results["cpu"][1], results["cpu"][1]
    assert locks.settle_conda([entry_of(tmp_path, "cpu")], found, upgrade=False) == 0
    assert "default.cpu: locked, unchanged, 1 targets" in capsys.readouterr().out


@pytest.mark.parametrize(("required", "code"), [(False, 0), (True, 2)])
def test_one_that_cannot_be_solved_does_not_stop_the_others(
    required: bool,
    code: int,
    results: dict[str, Any],
    found: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("cuda", "rocm"):
        results[name] = InvalidError(f"{name}: linux/amd64 with Python 3.11: no x", "Change it.")
    results["cpu"] = None, lock_of()
    entries = [entry_of(tmp_path, name, required=required) for name in results]
    assert locks.settle_conda(entries, found, upgrade=False) == code
    printed = capsys.readouterr().out
    assert "default.cpu: locked" in printed
    assert (
        "default.cuda, default.rocm: conda packages cannot be locked: linux/amd64 with Python 3.11:"
        " no x\nChange it.\n"
    ) in printed
    assert locks.settle_conda(entries[:2], found, upgrade=False) == 2  # all of them


def test_other_failures_end_the_command(
    results: dict[str, Any], found: Settings, tmp_path: Path
) -> None:
    results["cpu"] = BuildError("a channel cannot be read")
    with pytest.raises(BuildError):
        locks.settle_conda([entry_of(tmp_path, "cpu")], found, upgrade=False)
    # Outside of a project, each profile was requested.
    results["cpu"] = InvalidError("no x")
    entry = replace(entry_of(tmp_path, "cpu"), origin=None)
    with pytest.raises(InvalidError):
        locks.settle_conda([entry], found, upgrade=False)
