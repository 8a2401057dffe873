"""The path of a project's environment that stays the same, and the interpreter it is made of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from envbuilder.builds.backends import venv
from envbuilder.builds.plan import Plan, Seal
from envbuilder.builds.request import Request
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.core.settings import Settings
from envbuilder.host import interpreters
from envbuilder.packages.conda.lock import Rehome
from envbuilder.profiles.lock import File
from tests.support.pipeline import a_build
from tests.support.projects import project_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return project_settings(tmp_path, "requirements: [einops]\n")


# Which interpreter

LOCKED = File(
    kind="python", name="cpython", version="3.11.16", sha256="a" * 64, size=None,
    file="20260814/cpython-3.11.16+20260814-x86_64-unknown-linux-gnu-install_only.tar.gz",
    source="python-standalone", provenance="claim", by="x",
)  # fmt: skip
MINE = interpreters.Interpreter(path=Path("/usr/bin/python3.11"), version="3.11.9")


def prepared(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    *,
    here: bool,
    managed: bool = False,
    locked: File | None = LOCKED,
) -> Plan:
    """The plan for a project on the profile `cpu`, whose lock has an interpreter."""

    def find(*_: object, **__: object) -> interpreters.Interpreter:
        if not here:
            raise ToolError("no Python 3.11 for x86_64 was found")
        return MINE

    monkeypatch.setattr(interpreters, "find", find)
    build = a_build(settings, "cpu", request=Request(dry_run=True))
    python = replace(build.profile.python, managed=managed)
    targets = tuple(replace(t, interpreter=locked) for t in build.lock.targets)
    build = replace(
        build,
        profile=replace(build.profile, python=python),
        lock=replace(build.lock, targets=targets),
    )
    return venv.prepare(build).plan


def test_the_machines_interpreter_serves(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = prepared(settings, monkeypatch, here=True)
    assert LOCKED not in plan.files
    without = prepared(settings, monkeypatch, here=True, locked=None)
    assert plan == without, "environments of before are used"


@pytest.mark.parametrize(("here", "managed"), [(False, False), (False, True), (True, True)])
def test_the_locks_interpreter(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, here: bool, managed: bool
) -> None:
    plan = prepared(settings, monkeypatch, here=here, managed=managed)
    assert LOCKED in plan.files
    seal = next(step for step in plan.steps if isinstance(step, Seal))
    assert (seal.facts["facts"]["python"], seal.base_python) == (["3.11.16", "a" * 64], "")
    other = prepared(
        settings,
        monkeypatch,
        here=here,
        managed=managed,
        locked=replace(LOCKED, sha256="b" * 64),
    )
    assert plan.fingerprint != other.fingerprint
    rehome = next(step for step in plan.steps if isinstance(step, Rehome))
    assert rehome.python == f"{plan.artifact.ref}/lib/envbuilder/python/bin/python3.11"


def test_neither_the_machine_nor_the_lock_has_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolError, match=r"no Python 3\.11"):
        prepared(settings, monkeypatch, here=False, locked=None)
    with pytest.raises(InvalidError, match="has no interpreter for linux/amd64") as raised:
        prepared(settings, monkeypatch, here=True, managed=True, locked=None)
    assert "envbuilder lock" in raised.value.hint


# Where the payload works


@pytest.mark.parametrize(
    ("variables", "free", "folder"),
    [
        ({}, 2**30, "/dev/shm"),
        ({}, 2**20, None),
        ({"TMPDIR": "/scratch"}, 2**30, None),
    ],
)
def test_it_works_in_memory_if_there_is_room_and_no_folder_is_set(
    variables: dict[str, str], free: int, folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev/shm")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert venv._memory() == folder
