"""`add` and `remove` change a project's file and its locks together, or nothing."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import BuildError
from envbuilder.host import probe
from envbuilder.locks import resolve
from envbuilder.locks.chooser import Chooser
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Reason
from tests.support.broken_hosts import LINUX
from tests.support.command_line import FILE, Command, run
from tests.support.tools import tools

PROFILE = """\
description: Small
accelerator: cpu
platforms: [linux/amd64]
backends: [venv]
python: {default: "3.11", supported: ["3.11"]}
tools: {uv: 0.13.8}
requirements: [torch==2.13.0]
expects: {device: cpu, version: 2.13.0}
"""
TEXT = """\
# Ours.
profiles: [small, tiny]
requirements: [leaf]  # why

environments:
  notebooks:
    requirements:
      - lab
"""


def locked(profile: Any) -> profile_lock.Lock:
    """A lock that holds version 1.0 of all that a profile requires; `never` cannot be had."""
    names = [re.split("[=<>]", line)[0] for line in profile.requirements]
    files = tuple(
        profile_lock.File(
            kind="wheel", name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl", size=5,
            sha256="a" * 64, source="default", provenance="read", by="a test",
        )
        for name in names
    )  # fmt: skip
    fails = "never" in names or ("seldom" in names and profile.name == "tiny")
    target = profile_lock.Target(platform="linux/amd64", python="3.11", base=None, files=files)
    return profile_lock.Lock(
        schema=profile_lock.SCHEMA, profile=profile.name,
        inputs=profile_lock.inputs_digest(profile), state="unlocked" if fails else "locked",
        reason="",
        obstacle=Reason(text="seldom does not exist", target="linux/amd64 with Python 3.11")
        if fails
        else None,
        tools={} if fails else tools(), targets=() if fails else (target,),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on two small profiles; whatever exists can be locked."""
    FILE.write_text(TEXT)
    (tmp_path / "profiles").mkdir()
    for name in ("small", "tiny"):
        (tmp_path / f"profiles/{name}.yaml").write_text(f"name: {name}\n{PROFILE}")
    monkeypatch.setattr(resolve, "resolve", lambda profile, *_, **__: locked(profile))
    monkeypatch.setattr(Chooser, "alternatives", lambda *_: ())
    return tmp_path


def locks() -> set[str]:
    return {path.name for path in Path().glob("envbuilder.lock/*")}


def packages(name: str) -> set[str]:
    lock = profile_lock.load(Path(f"envbuilder.lock/{name}.json"))
    return {f.name for f in lock.files if f.kind == "wheel"}


def test_a_package_is_added_and_locked_everywhere(envbuilder: Command) -> None:
    envbuilder("lock")
    FILE.chmod(0o640)
    out = envbuilder("add", "more>=1").out
    assert FILE.read_text() == TEXT.replace("[leaf]", "[leaf, more>=1]")
    assert stat.S_IMODE(FILE.stat().st_mode) == 0o640
    assert out.startswith("envbuilder.yaml: added more>=1\n")
    assert "\ndefault.small: locked, 2.13.0, Python 3.11, 6 files, 1 changed\n  + more 1.0\n" in out
    assert out.endswith(
        "\ndefault.tiny: locked, 2.13.0, Python 3.11, 6 files, 1 changed\n"
        "notebooks.tiny: locked, 2.13.0, Python 3.11, 7 files, 1 changed\n"
    )
    assert len(locks()) == 4
    assert packages("notebooks.tiny") == {"torch", "leaf", "lab", "more"}


def test_what_is_not_locked_yet_stays_so(envbuilder: Command) -> None:
    envbuilder("lock", "--profile", "tiny")
    before = locks()
    envbuilder("add", "more")
    assert locks() == before == {"default.tiny.json", "notebooks.tiny.json"}


def test_it_is_removed_again_and_the_text_is_the_same(envbuilder: Command) -> None:
    envbuilder("add", "more")
    assert "- more 1.0" in envbuilder("remove", "More").out
    assert FILE.read_text() == TEXT


@pytest.mark.parametrize("arguments", [("add", "more"), ("remove", "leaf")])
def test_an_edit_that_is_saved_meanwhile_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command, arguments: tuple[str, ...]
) -> None:
    envbuilder("lock")
    before = {path: path.read_text() for path in Path().glob("envbuilder.lock/*")}
    edited = TEXT.replace("[leaf]", "[leaf, theirs]")

    def resolve_while_somebody_saves(profile: Any, *_: Any, **__: Any) -> profile_lock.Lock:
        FILE.write_text(edited)
        return locked(profile)

    monkeypatch.setattr(resolve, "resolve", resolve_while_somebody_saves)
    printed = envbuilder(*arguments, code=2).err
    assert FILE.read_text() == edited
    assert {each: each.read_text() for each in before} == before
    assert "was edited while this command ran" in printed
    assert "Run the same command again." in printed


def test_what_is_replaced_or_left_out_is_told(envbuilder: Command) -> None:
    text = f"{TEXT}exclude: [More]\noverrides: {{Other: 'other<2', lab: leaf}}\n"
    FILE.write_text(text)
    for name in ("more", "lab"):
        error = envbuilder("add", name, code=2).err
        assert f"{name} is excluded from every environment by exclude: or overrides: in" in error
        assert "envbuilder.yaml was not changed.\nRemove that entry first.\n" in error
    assert FILE.read_text() == text
    output = envbuilder("add", "other>=2", "einops").out
    assert "note: other<2 replaces other>=2, because envbuilder.yaml or a file" in output
    assert output.count("replaces") == 1


def test_one_environment_alone_is_locked(envbuilder: Command) -> None:
    envbuilder("add", "--environment", "notebooks", "more")
    assert FILE.read_text() == TEXT + "      - more\n"
    assert locks() == {"notebooks.small.json", "notebooks.tiny.json"}


def test_what_cannot_be_locked_at_all_changes_nothing(envbuilder: Command) -> None:
    err = envbuilder("add", "never", code=2).err
    assert FILE.read_text() == TEXT
    assert locks() == set()
    assert "default.small cannot be locked (and for 3 more): seldom does not exist" in err
    assert "envbuilder.yaml was not changed." in err


def test_what_can_be_locked_for_some_profiles_is_added(envbuilder: Command) -> None:
    assert envbuilder("add", "seldom", code=2).out.endswith(
        "default.tiny, notebooks.tiny: cannot be locked: seldom does not exist\n"
        "  envbuilder.yaml:3: seldom\n"
    )
    assert "seldom" in FILE.read_text()
    assert "seldom" in packages("default.small")


def test_a_lock_that_can_no_longer_be_made_is_kept(project: Path, envbuilder: Command) -> None:
    envbuilder("lock", "--profile", "tiny")
    FILE.write_text(TEXT.replace("[leaf]", "[leaf, seldom]"))
    out = envbuilder("lock", "--profile", "tiny", code=2).out
    path = project / "envbuilder.lock/default.tiny.json"
    stays = f"cannot be locked now, so the lock in {path} is kept: seldom does not exist"
    assert f"default.tiny: {stays}\n  envbuilder.yaml:3: seldom\n" in out
    assert packages("default.tiny") == {"torch", "leaf"}


@pytest.mark.parametrize(("package", "code"), [("never", 2), ("seldom", 0)])
def test_a_project_that_can_be_locked_for_no_profile_is_2(package: str, code: int) -> None:
    FILE.write_text(f"requirements: [{package}]\n")
    assert run("lock") == code


def test_check_fails_where_lock_does(envbuilder: Command) -> None:
    FILE.write_text("requirements: [never]\n")
    envbuilder("lock", code=2)
    assert (
        "✗ default.tiny             unlocked   2.13.0, Python 3.11\n"
        in envbuilder("check", code=2).out
    )


@pytest.mark.parametrize(("key", "kind"), [("python_path", "folder"), ("files", "file or folder")])
def test_a_path_that_does_not_exist_is_2(envbuilder: Command, key: str, kind: str) -> None:
    FILE.write_text(f"{TEXT}{key}: [profiles, missing]\n")
    wrong = f"envbuilder.yaml:9: {key}: 'missing' is not a {kind} in the project\n"
    for command in ("check", "build", "lock"):
        assert wrong in envbuilder(command, code=2).err


def test_what_stands_in_the_way_of_a_build_is_the_lock_that_failed(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setattr(probe, "host", lambda: LINUX)
    FILE.write_text("profiles: [tiny]\nrequirements: [seldom]\n")
    envbuilder("lock", code=2)
    error = envbuilder("build", code=2).err
    assert "profile 'tiny' is not locked: linux/amd64 with Python 3.11: seldom does not" in error
    assert error.endswith("Run:\n  envbuilder lock\n")


def test_a_project_file_that_cannot_be_written_changes_no_lock(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    envbuilder("lock")
    replace = Path.replace

    def replaced(part: Path, path: Path) -> Path:
        if path.name == "envbuilder.yaml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(part, path)

    monkeypatch.setattr(Path, "replace", replaced)
    assert (
        "envbuilder.yaml: cannot be written: No space left" in envbuilder("add", "more", code=2).err
    )
    assert FILE.read_text() == TEXT
    assert packages("default.small") == {"torch", "leaf"}


@pytest.mark.parametrize("again", [("add", "more"), ("lock",)])
def test_what_was_killed_before_the_project_file_was_written_is_finished(
    again: tuple[str, ...], envbuilder: Command
) -> None:
    """That file comes last: adding does it all, and locking goes back to what the file says."""
    envbuilder("add", "more")
    FILE.write_text(TEXT)
    envbuilder(*again)
    is_added = "more" in FILE.read_text()
    assert is_added == ("more" in packages("default.small")) == (again[0] == "add")


CONFLICT = b"<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (CONFLICT, "not a lock: Expecting value in line 1"),
        (b'{"schema": 99}', "lock schema 99 is not supported (supported: 2)"),
        (b"\xff", "not a lock: not UTF-8 text"),
    ],
)
def test_what_cannot_be_read_is_made_anew_with_the_others(
    project: Path, envbuilder: Command, damage: bytes, reason: str
) -> None:
    path = project / "envbuilder.lock/default.small.json"
    path.parent.mkdir()
    path.write_bytes(damage)
    assert "envbuilder lock" in envbuilder("check", code=2).out
    out = envbuilder("lock").out
    assert f"{path}: {reason} (made again)\n" in out
    assert out.count("made again") == 1
    assert len(locks()) == 4
    assert packages("default.small") == {"torch", "leaf"}


def test_what_cannot_be_read_is_kept_if_nothing_can_be_locked(
    project: Path, envbuilder: Command
) -> None:
    path = project / "envbuilder.lock/default.tiny.json"
    path.parent.mkdir()
    path.write_bytes(CONFLICT)
    FILE.write_text("profiles: [tiny]\nrequirements: [seldom]\n")
    assert f"{path}: not a lock: Exp" in envbuilder("lock", code=2).out
    assert path.read_bytes() == CONFLICT


def test_what_no_command_could_read_is_not_written(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    wrong = {"state": "unlocked", "obstacle": Reason(text="two\nlines")}
    monkeypatch.setattr(resolve, "resolve", lambda p, *_, **__: replace(locked(p), **wrong))
    assert (
        "the new lock would be unreadable, so nothing was written" in envbuilder("lock", code=2).err
    )
    assert not Path("envbuilder.lock").exists()


def test_a_broken_index_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setattr(
        resolve,
        "resolve",
        Mock(side_effect=BuildError("the index does not answer", "Try again later.")),
    )
    assert (
        "envbuilder.yaml was not changed.\nTry again later."
        in envbuilder("add", "more", code=1).err
    )
    assert FILE.read_text() == TEXT


def test_locks_that_the_project_rules_out_are_removed(project: Path, envbuilder: Command) -> None:
    envbuilder("lock")
    FILE.write_text("profiles: [small]\nrequirements: [leaf]\n")
    (project / "envbuilder.lock/notes.tiny.json").write_text("{}")
    envbuilder("lock", "--profile", "small")
    assert len(locks()) == 5
    signature = project / "envbuilder.lock/default.tiny.json.intoto.jsonl"
    signature.write_text("{}")
    out = envbuilder("lock").out
    assert locks() == {"default.small.json", "notes.tiny.json"}
    assert not signature.exists()
    path = project / "envbuilder.lock"
    assert f"removed {path / 'default.tiny.json'}: profiles: in envbuilder.yaml does not" in out
    assert f"removed {path / 'notebooks.small.json'}: envbuilder.yaml has no environment" in out


def test_what_is_there_already_is_no_change_and_is_locked(envbuilder: Command) -> None:
    out = envbuilder("add", "leaf", "torch").out
    assert "note: torch comes from the profile" in out
    assert "nothing to change" in out
    assert FILE.read_text() == TEXT
    assert "default.small.json" in locks()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "torch==2.6"), 'framework_version: "2.6"'),
        (("add", "einop"), "envbuilder add --exact einop"),
        (("add", "-e", "."), "No such option"),
        (("add", "a @ file:///a"), "a local path, but only packages from an index"),
        (("add", "--environment", "gpu", "a"), "has no environment 'gpu'"),
        (("remove", "leav"), "It lists: leaf."),
        (("remove", "lab"), "envbuilder remove --environment notebooks lab"),
        (("add",), "Missing argument"),
    ],
)
def test_a_mistake_is_2_and_changes_nothing(
    arguments: tuple[str, ...], message: str, envbuilder: Command
) -> None:
    assert message in envbuilder(*arguments, code=2).err
    assert FILE.read_text() == TEXT


def test_without_a_project_init_is_named(envbuilder: Command) -> None:
    FILE.unlink()
    assert "envbuilder init" in envbuilder("add", "a", code=2).err


def test_an_empty_file_is_a_project_once_it_lists_something(envbuilder: Command) -> None:
    FILE.write_text("# nothing yet\n")
    envbuilder("add", "torchvision")
    text = FILE.read_text()
    assert text == "# nothing yet\nrequirements:\n  - torchvision\n"


def test_only_the_named_package_is_upgraded(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    envbuilder("lock", "--profile", "tiny")
    names: list[Any] = []

    def resolved(profile: Any, *_: Any, **options: Any) -> profile_lock.Lock:
        names.append(options["upgrade_packages"])
        return locked(profile)

    monkeypatch.setattr(resolve, "resolve", resolved)
    envbuilder("lock", "--profile", "tiny", "--upgrade-package", "torch")
    assert names == [("torch",)] * 2
    assert "Did you mean 'leaf'?" in envbuilder("lock", "--upgrade-package", "leav", code=2).err
    assert (
        "The project is for another framework."
        in envbuilder("lock", "--upgrade-package", "jax", code=2).err
    )


def test_nothing_of_what_is_not_locked_can_be_upgraded(envbuilder: Command) -> None:
    assert (
        "nothing is locked yet\nLock it:\n  envbuilder lock\n"
        in envbuilder("lock", "--upgrade-package", "leaf", code=2).err
    )


def test_a_day_that_the_locks_are_made_as_of_is_the_file_s(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    days = []

    def resolved(profile: Any, *_: Any, **__: Any) -> profile_lock.Lock:
        days.append(profile.resolution.as_of)
        return locked(profile)

    monkeypatch.setattr(resolve, "resolve", resolved)
    assert "envbuilder.yaml: as_of: 2031-01-02\n" in envbuilder("lock", "--as-of", "2031-01-02").out
    assert FILE.read_text() == f"{TEXT}as_of: 2031-01-02\n"
    envbuilder("lock", "--as-of", "2032-01-02", "--profile", "tiny")
    assert FILE.read_text() == f"{TEXT}as_of: 2032-01-02\n"
    envbuilder("lock", "--as-of", "2033-01-02", "--output-dir", "elsewhere")
    assert FILE.read_text() == f"{TEXT}as_of: 2032-01-02\n", "those locks are not the project's"
    assert days == ["2031-01-02"] * 4 + ["2032-01-02"] * 2 + ["2033-01-02"] * 4
    FILE.write_text(before := "requirements: [never]\n")
    envbuilder("lock", "--as-of", "2031-01-02", code=2)
    assert FILE.read_text() == before
    for wrong in (("--as-of", "yesterday"), ("--as-of", "2031-01-02", "--backend", "conda")):
        envbuilder("lock", *wrong, code=2)


@pytest.mark.parametrize("other", [("--upgrade",), ("--backend", "conda")])
def test_options_that_exclude_an_upgrade_of_one(
    other: tuple[str, ...], envbuilder: Command
) -> None:
    assert (
        f"cannot be combined with {other[0]}"
        in envbuilder("lock", "--upgrade-package", "leaf", *other, code=2).err
    )


def test_a_lock_of_nothing_beside_a_file_that_is_not_read(envbuilder: Command) -> None:
    Path("setup.py").write_text("setup(install_requires=['leaf'])")
    assert "setup.py" not in envbuilder("lock").out
    FILE.write_text("requirements: []\nprofiles: [small]\n")
    assert (
        "note: envbuilder.yaml lists no requirements, but setup.py lists requirements. To use it,"
        " write requirements_from: [setup.py]\n"
    ) in envbuilder("lock").out
