"""`envbuilder lock`: locks of another schema, several side by side, and those of conda."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.commands import lock as locks, resolution
from envbuilder.core import process, resources
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.host import probe
from envbuilder.locks import entries, resolve, target_wheels
from envbuilder.locks.blockers import Diagnosis
from envbuilder.locks.chooser import Chooser, Way
from envbuilder.locks.entries import Entry
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.conda.lock import Lock as CondaLock
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Reason
from envbuilder.profiles.profile import Profile, load as load_profile
from envbuilder.profiles.releases import Build
from envbuilder.project.lines import Line
from tests.support import conda_locks
from tests.support.broken_hosts import LINUX
from tests.support.command_line import FILE, Command
from tests.support.projects import lay_locked
from tests.support.shipped import shipped_profile
from tests.support.tools import tools

PROFILE = """\
name: tiny
description: Small
accelerator: cpu
platforms: [linux/amd64]
backends: [venv]
python: {default: "3.11", supported: ["3.11"]}
tools: {uv: 0.13.8}
requirements: [leaf]
expects: {device: cpu, version: 2.13.0}
"""
LEAF = profile_lock.File(
    kind="wheel", name="leaf", version="1.0", file="leaf-1.0-py3-none-any.whl", sha256="a" * 64,
    size=5, source="default", provenance="read", by="a test",
)  # fmt: skip


def new_lock(folder: Path) -> profile_lock.Lock:
    profile = load_profile("tiny", (folder / "profiles",))
    target = profile_lock.Target(platform="linux/amd64", python="3.11", base=None, files=(LEAF,))
    return profile_lock.Lock(
        schema=profile_lock.SCHEMA, profile="tiny", inputs=profile_lock.inputs_digest(profile),
        state="locked", reason="", tools=tools(), targets=(target,),
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose lock is of another schema."""
    FILE.write_text("")
    (tmp_path / "profiles/locks").mkdir(parents=True)
    (tmp_path / "profiles/tiny.yaml").write_text(PROFILE)
    text = profile_lock.dump(new_lock(tmp_path)).replace('"schema": 2', '"schema": 1')
    (tmp_path / "profiles/locks/tiny.json").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("build", "--backend", "venv"),
        ("verify", "--backend", "venv", "--force"),
        ("bundle", "--platform", "linux/amd64", "-o", "x.tar"),
        ("sbom",),
        ("render", "--target", "requirements", "-o", "out"),
    ],
)
def test_a_lock_of_another_schema_is_2_and_the_way_out_is_named(
    project: Path, command: tuple[str, ...], envbuilder: Command
) -> None:
    printed = envbuilder(*command[:1], "--profile", "tiny", *command[1:], code=2).err
    assert "lock schema 1 is not supported (supported: 2)" in printed
    assert "envbuilder lock" in printed


def test_the_way_out_makes_it_again(
    project: Path, monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setattr(resolve, "resolve", lambda *_, **__: new_lock(project))
    assert (
        "tiny: locked, 4 files → profiles/locks/tiny.json"
        in envbuilder("lock", "--profile", "tiny").out
    )
    path = project / "profiles/locks/tiny.json"
    assert profile_lock.load(path) == new_lock(project)


@pytest.fixture
def shipped(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock that came with envbuilder for a profile of its own, outside of any project."""
    FILE.unlink()
    lock = new_lock(project)
    folder = (project / "profiles").rename(project / "shipped")
    (folder / "devices").symlink_to(resources.profiles_dir() / "devices")
    monkeypatch.setattr(resources, "profiles_dir", lambda: folder)
    path = folder / "locks/tiny.json"
    path.write_text(profile_lock.dump(lock))
    return path


def test_a_shipped_lock_that_stays_is_not_copied(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    lock = profile_lock.load(shipped)
    monkeypatch.setattr(resolve, "resolve", lambda *_, **__: lock)
    assert (
        envbuilder("lock", "--profile", "tiny").out
        == "tiny: locked, unchanged, 4 files → shipped/locks/tiny.json\n"
    )
    envbuilder("lock", "--profile", "tiny", "--output-dir", "copy")
    assert profile_lock.load(Path("copy/tiny.json")) == lock


def test_a_lock_that_hides_a_shipped_one_says_so(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    lock = profile_lock.load(shipped)
    older = replace(LEAF, version="0.9", file="leaf-0.9-py3-none-any.whl")
    other = replace(lock, targets=(replace(lock.targets[0], files=(older,)),))
    monkeypatch.setattr(resolve, "resolve", lambda *_, **__: other)
    out = envbuilder("lock", "--profile", "tiny").out
    own = load_settings().config_dir / "profiles/locks/tiny.json"
    assert profile_lock.load(own) == other
    assert "this lock replaces the shipped one" in out
    assert "  leaf 1.0 → 0.9\n" in out
    assert f"{own} replaces the shipped lock" in envbuilder("profiles", "tiny").out


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Profile]:
    """A project where AMD's wheels of 2.13.0 cannot be had; collects what is locked."""
    locked: list[Profile] = []

    def resolved(profile: Profile, *_: Any, **__: Any) -> profile_lock.Lock:
        locked.append(profile)
        place = {"platform": profile.platforms[0], "python": profile.python.default}
        target = profile_lock.Target(**place, base=None, files=(LEAF,))
        return replace(profile_lock.nothing(profile), tools=tools(), targets=(target,))

    def pythons(hashes: Any, build: Build) -> tuple[str, ...]:
        return () if (build.build[:4], build.release) == ("rocm", "2.13.0") else build.pythons

    monkeypatch.setattr(probe, "host", lambda: LINUX)
    monkeypatch.setattr(resolve, "resolve", resolved)
    monkeypatch.setattr(target_wheels.Hashes, "__call__", pythons)
    FILE.write_text("requirements: [rich]\nprofiles: [mps, rocm]\n")
    return locked


WHY = "no reachable index or public lock has a hash of 2.13.0 (rocm7.2)\n"
TABLE = f"""\
default.mps: locked, 2.13.0 (macos), Python 3.11, 4 files
default.rocm: locked, 2.14.0 (rocm7.2), Python 3.11, 4 files
  {WHY}"""


@pytest.mark.parametrize("command", [["lock"], ["add", "einops"]])
def test_a_profile_with_another_release_says_why(
    elsewhere: list[Profile], envbuilder: Command, command: list[str]
) -> None:
    assert TABLE in envbuilder(*command).out
    assert [(p.name, p.release) for p in elsewhere] == [("mps", "2.13.0"), ("rocm", "2.14.0")]
    checked = envbuilder("check", code=2).out
    assert " 2.13.0 (macos), Python 3.11\n" in checked
    assert " 2.14.0 (rocm7.2), Python 3.11\n" in checked
    assert f"    {WHY}" in checked
    for line in TABLE.splitlines():
        assert len(line) <= 80


def test_each_lock_is_one_line(elsewhere: list[Profile], envbuilder: Command) -> None:
    text = "requirements: [torch==2.14.1]\nprofiles: [mps, rocm]\n"
    FILE.write_text(text)
    assert envbuilder("lock").out == (
        "default.mps: locked, 2.14.1 (macos), Python 3.11, 4 files\n"
        "default.rocm: locked, 2.14.1 (rocm7.2), Python 3.11, 4 files\n"
    )


NEEDED = """\
ext 1.0 needs torch 2.4.1
default.mps: locked, 2.4.1 (macos), Python 3.11, 4 files
default.rocm: locked, 2.4.1 (rocm6.1), Python 3.11, 4 files
default.xpu: cannot be locked: ext==1.0 depends on torch==2.4.1
  envbuilder.yaml:1: ext==1.0
"""


@pytest.mark.parametrize("command", [["lock"], ["add", "ext==1.0"]])
def test_a_release_that_a_package_needs_is_that_of_all_profiles(
    elsewhere: list[Profile],
    monkeypatch: pytest.MonkeyPatch,
    envbuilder: Command,
    command: list[str],
) -> None:
    asked: list[str] = []

    def resolved(profile: Profile, *_: Any, **__: Any) -> profile_lock.Lock:
        state = "locked"
        obstacle = None
        if profile.release != "2.4.1":
            state = "unlocked"
            proof = "" if profile.name == "xpu" else "by uv"
            obstacle = Reason(text="ext==1.0 depends on torch==2.4.1", proof=proof)
            targets = ()
        else:
            file = "torch-2.4.1-py3-none-any.whl"
            torch = replace(LEAF, name="torch", version="2.4.1", file=file)
            place = {"platform": profile.platforms[0], "python": profile.python.default}
            targets = (profile_lock.Target(**place, base=None, files=(torch,)),)
        empty = profile_lock.nothing(profile)
        return replace(empty, state=state, obstacle=obstacle, tools=tools(), targets=targets)

    def ways(chooser: Chooser, *_: Any) -> Iterator[Way]:
        asked.append(chooser._profile.name)
        yield Way("3.11", (), Line("torch==2.4.1", "ext 1.0"))

    monkeypatch.setattr(resolve, "resolve", resolved)
    monkeypatch.setattr(Chooser, "alternatives", ways)
    listed = "" if command[0] == "add" else "requirements: [ext==1.0]\n"
    FILE.write_text(f"{listed}profiles: [mps, rocm, xpu]\n")
    # xpu is listed, and has no 2.4.1
    out = envbuilder(*command, code=2).out
    assert asked == ["mps"]
    if command == ["lock"]:
        assert out == NEEDED
    # What is locked stays, and the exception moves nothing.
    assert "mps: locked, unchanged" in envbuilder("lock", code=2).out
    assert "xpu" not in asked


def test_a_release_that_no_profile_has_is_an_error(
    elsewhere: list[Profile], envbuilder: Command
) -> None:
    FILE.write_text('framework_version: "9"\nprofiles: [mps]\n')
    out = envbuilder("lock", code=2).out
    assert "envbuilder.yaml:1: torch==9.*: profile 'mps' has PyTorch 1.12.0 and later" in out
    assert "Allow one of the versions listed." in out


def entry(project: Path, name: str) -> Entry:
    profile = load_profile("tiny", (project / "profiles",))
    path = project / f"{name}.tiny.json"
    return Entry(name=name, profile=profile, earlier=None, path=path, required=False)


@pytest.mark.parametrize(
    ("here", "required", "fitting", "code"),
    [
        ("linux/amd64", True, "b", 2),
        ("linux/amd64", False, "b", 0),
        ("linux/amd64", False, "a", 2),
        ("linux/arm64", True, "a", 0),
        ("macos/arm64", True, "a", 0),
    ],
)
def test_a_platform_that_is_left_out_is_an_error_where_it_is_this_machines(
    project: Path, found: Settings, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], here: str, required: bool, fitting: str, code: int,
) -> None:  # fmt: skip
    host = replace(probe.host(), platform=here)
    monkeypatch.setattr(probe, "host", lambda: host)
    lock = new_lock(project)
    profile = load_profile("tiny", (project / "profiles",))
    both = replace(profile, platforms=("linux/amd64", "linux/arm64"))
    why = Reason(
        text="1 package stands in the way", items=("leaf (envbuilder.yaml:1): has no wheel",)
    )
    partly = replace(
        lock, targets=(replace(lock.targets[0], platform="linux/arm64"),),
        missing={"linux/amd64 3.11": why},
    )  # fmt: skip
    outcomes = [
        resolution.Outcome(
            replace(entry(project, "a"), profile=both, required=required), None, partly
        ),
        resolution.Outcome(entry(project, "b"), None, lock),
    ]
    monkeypatch.setattr(locks, "of_this_machine", lambda *_: {fitting})
    assert locks.write_and_report(outcomes, found, "") == code
    assert (project / "a.tiny.json").read_text() == profile_lock.dump(partly)
    out = capsys.readouterr().out
    if fitting == "a":
        assert "not for linux/amd64 3.11: 1 package stands in the way:\n    leaf (env" in out
    assert ("a cannot be built on this machine, which is linux/amd64\n" in out) == (code == 2)


def test_a_lock_that_cannot_be_made_is_this_machines_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_locked(tmp_path, monkeypatch)
    monkeypatch.setattr(probe, "host", lambda: LINUX)
    FILE.write_text("profiles: [cpu, cuda]\npython: '3.11'\n")
    path = tmp_path / "envbuilder.lock/default.cpu.json"
    nothing = {"targets": (), "tools": {}, "obstacle": Reason(text="its index is silent")}
    unlocked = replace(profile_lock.load(path), state="unlocked", reason="", **nothing)
    path.write_text(profile_lock.dump(unlocked))
    settings = load_settings()
    assert locks.of_this_machine(entries.entries(settings), settings) == {"default.cpu"}


def test_locks_are_resolved_side_by_side_and_stay_in_order(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=10)
    later = threading.Event()

    def resolved(*_: object, **__: object) -> profile_lock.Lock:
        if both.wait() == 0:
            assert later.wait(10)
        later.set()
        return new_lock(project)

    monkeypatch.setattr(resolve, "resolve", resolved)
    settings = load_settings()
    made = resolution.resolved(
        [entry(project, n) for n in "abcd"],
        settings,
        Diagnosis(settings),
        upgrade=False,
    )
    assert [outcome.entry.name for outcome in made] == ["a", "b", "c", "d"]


def test_what_threads_must_not_set_up_is_set_up_before_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv's path comes from `sysconfig`, whose variables are made at the first question."""
    asked: list[threading.Thread] = []

    def variables() -> dict[str, str]:
        asked.append(threading.current_thread())
        return {}

    def resolved(*_: object, **__: object) -> profile_lock.Lock:
        assert asked == [threading.main_thread()]
        return new_lock(project)

    monkeypatch.setattr(sysconfig, "get_config_vars", variables)
    monkeypatch.setattr(resolve, "resolve", resolved)
    entries = [entry(project, n) for n in "ab"]
    settings = load_settings()
    asked_for = (entries, settings, Diagnosis(settings))
    assert len(resolution.resolved(*asked_for, upgrade=False)) == 2


def test_one_that_fails_ends_the_programs_that_the_others_wait_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and nothing goes on."""
    both = threading.Barrier(2, timeout=10)
    killed = threading.Event()
    ended = threading.Event()

    def resolved(*_: object, **__: object) -> profile_lock.Lock:
        if both.wait() == 0:
            raise BuildError("the index is broken")
        assert killed.wait(10)
        ended.set()
        raise BuildError("killed")

    monkeypatch.setattr(resolve, "resolve", resolved)
    monkeypatch.setattr(process, "kill", lambda _: killed.set())
    entries = [entry(project, n) for n in "ab"]
    settings = load_settings()
    with pytest.raises(BuildError, match="broken"):
        resolution.resolved(entries, settings, Diagnosis(settings), upgrade=False)
    assert ended.wait(10)
    for each in entries:
        assert not each.path.exists()


CPU = shipped_profile("cpu")


def lock_of(version: str = "1.0", **changes: Any) -> CondaLock:
    python = conda_locks.package("python", f"3.11.{version}")
    return replace(conda_locks.lock_of(CPU, python), **{"inputs": "0" * 64, **changes})


def entry_of(folder: Path, name: str, *, required: bool = False) -> entries.CondaEntry:
    path = folder / f"default.{name}.conda.json"
    profile = replace(CPU, name=name)
    return entries.CondaEntry(
        label=f"default.{name}", profile=profile, origin=profile, path=path, required=required,
        earlier=path if path.is_file() else None,
    )  # fmt: skip


Solution = tuple[CondaLock | None, CondaLock] | Exception


@pytest.fixture
def solutions(
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Solution]:
    """What solving each profile comes to."""
    stated: dict[str, Solution] = {}

    def solved(
        entry: entries.CondaEntry, *_: Any, **options: Any
    ) -> tuple[CondaLock | None, CondaLock]:
        result = stated[entry.profile.name]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(entries, "conda_solved", solved)
    return stated


def test_what_changed_is_written_and_said(
    solutions: dict[str, Any], found: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"linux/arm64 3.11": Reason(text="conda-forge has no x for linux-aarch64")}
    solutions["cpu"] = lock_of("1"), lock_of("2", missing=missing)
    path = tmp_path / "default.cpu.conda.json"
    assert locks.settle_conda([entry_of(tmp_path, "cpu")], found, upgrade=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "default.cpu: locked, 1 conda package → default.cpu.conda.json",
        "  python 3.11.1 → 3.11.2",
        "  not for linux/arm64 3.11: conda-forge has no x for linux-aarch64",
    ]
    assert conda_lock.load(path) == solutions["cpu"][1]
    solutions["cpu"] = solutions["cpu"][1], solutions["cpu"][1]
    assert locks.settle_conda([entry_of(tmp_path, "cpu")], found, upgrade=False) == 0
    assert "default.cpu: locked, unchanged, 1 conda package" in capsys.readouterr().out


@pytest.mark.parametrize(("required", "code"), [(False, 0), (True, 2)])
def test_one_that_cannot_be_solved_does_not_stop_the_others(
    required: bool,
    code: int,
    solutions: dict[str, Any],
    found: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("cuda", "rocm"):
        solutions[name] = InvalidError("linux/amd64 with Python 3.11: no x", "Change it.")
    solutions["cpu"] = None, lock_of()
    entries = [entry_of(tmp_path, name, required=required) for name in solutions]
    assert locks.settle_conda(entries, found, upgrade=False) == code
    printed = capsys.readouterr().out
    assert "default.cpu: locked" in printed
    assert (
        "default.cuda, default.rocm: conda packages cannot be locked: linux/amd64 with Python 3.11:"
        " no x\nChange it.\n"
    ) in printed
    assert locks.settle_conda(entries[:2], found, upgrade=False) == 2  # all of them


def test_other_failures_end_the_command(
    solutions: dict[str, Any], found: Settings, tmp_path: Path
) -> None:
    solutions["cpu"] = BuildError("a channel cannot be read")
    with pytest.raises(BuildError):
        locks.settle_conda([entry_of(tmp_path, "cpu")], found, upgrade=False)
    # Outside of a project, each profile was requested.
    solutions["cpu"] = InvalidError("no x")
    entry = replace(entry_of(tmp_path, "cpu"), origin=None)
    with pytest.raises(InvalidError):
        locks.settle_conda([entry], found, upgrade=False)
