"""The parent of a watched command: its folders, and what it reads back."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from envbuilder.core import process
from envbuilder.watch import model, supervise
from tests.support.folders import names_in

OBSERVED = {"framework": "torch", "version": "2", "pid": 1, "seconds": 1.0}


def test_the_hook_is_laid_for_one_command_and_leaves_nothing(tmp_path: Path) -> None:
    with supervise.Session.laid(tmp_path) as session:
        names = names_in(session.hook)
        assert {"sitecustomize.py", "record.py", "torch_.py"} <= names
        assert "__init__.py" not in names
        with supervise.Session.laid(tmp_path) as beside:
            assert beside.hook != session.hook
        assert session.hook.is_dir()
    assert [*tmp_path.iterdir()] == []


def test_a_killed_commands_folder_goes_with_the_next_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "0a").mkdir()
    (tmp_path / "0a.lock").touch()
    (tmp_path / "laid").mkdir()
    with supervise.Session.laid(tmp_path) as running:
        assert not (tmp_path / "0a").exists()
        with supervise.Session.laid(tmp_path):
            assert running.hook.is_dir()
    assert names_in(tmp_path) == {"laid"}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_container_of_another_user_reads_the_hook_and_writes_beside_it(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root in a user's folder: the container has that user."""
    given: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((path, uid, gid)))
    before = os.umask(umask)
    try:
        with supervise.Session.laid(tmp_path, owner=(1234, 5678)) as session:
            modes = {path.stat().st_mode & 0o777 for path in (session.folder, session.hook)}
            assert given == [(session.folder / "out", 1234, 5678)]
            assert modes == {0o755}
            assert (session.hook / "record.py").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_of_too_many_parts_the_largest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training has more to tell than what only imports its framework."""
    monkeypatch.setattr(model, "MOST_PROCESSES", 1)
    with supervise.Session.laid(tmp_path) as session:
        for pid, steps in (("1", {}), ("2", {"steps": 3, "losses": [[1, 2.0]]}), ("3", {})):
            part = json.dumps({**OBSERVED, **steps})
            (session.folder / f"out/{pid}.json").write_text(part)
        parts, left_out = session.parts()
    assert ([part.steps for part in parts], left_out) == ([3], 2)


def test_damaged_foreign_and_too_many_parts_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MOST_PROCESSES", 5)
    with supervise.Session.laid(tmp_path) as session:
        out = session.folder / "out"
        (out / "1.json").write_text(json.dumps({**OBSERVED, "rank": 1}))
        (out / "2.json").write_text(json.dumps({**OBSERVED, "rank": 0, "steps": 3}))
        (out / "3.json").write_text('{"framework": "torch"')
        (out / "4.json").symlink_to(out / "1.json")
        (out / "5.json").write_text(json.dumps({**OBSERVED, "version": "x" * 300_000}))
        (out / "6.json").write_text("")
        (out / "7.json.123").write_text("half")
        parts, left_out = session.parts()
    assert [part.rank for part in parts] == [0, 1]
    assert left_out == 4


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({}, True),
        ({"unknown": 1}, True),
        ({"steps": -1}, False),
        ({"seconds": float("inf")}, False),
        ({"framework": "numpy"}, False),
        ({"losses": [[1, 2.0]] * 513}, False),
        (
            {
                "work": [
                    {"operator": "", "device": "d" * 201, "dtype": "", "flops": 1, "seconds": 0}
                ]
            },
            False,
        ),
    ],
)
def test_a_part_is_bounded(change: dict[str, object], accepted: bool, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps({**OBSERVED, **change}))
    assert (model.part(tmp_path / "1.json") is not None) is accepted


def test_what_processes_write_is_what_is_read() -> None:
    """The writer imports nothing of ours: its names are held against the model here."""
    inside = Path(supervise.__file__).with_name("inside")
    written = "".join(path.read_text() for path in inside.glob("*.py"))
    fields = {field.name for field in msgspec.structs.fields(model.Observed)}
    tables = {"parameters", "gradients"}  # made of variables
    assert {name for name in fields - tables if f'"{name}"' not in written} == set()


def test_gpus_are_read_meanwhile_and_what_a_driver_does_not_count_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NVMLError(Exception):
        pass

    def power(gpu: int) -> int:
        raise NVMLError

    asked = list[int]()
    again = threading.Event()

    def name(gpu: int) -> bytes:
        asked.append(gpu)
        if len(asked) > 1:  # the first reading is complete
            again.set()
        return b"A GPU"

    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=name,
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=50),
        nvmlDeviceGetPowerUsage=power,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(supervise, "_SECONDS", 0.001)

    monkeypatch.setattr(process, "accompany", lambda *_: int(again.wait(5)))
    running = supervise.Running(in_container=True)
    assert running.start(("true",), {}) == 1
    assert running.machine.other_seconds is None
    assert running.machine.gpus == (model.Gpu(index=0, name="A GPU", utilization=0.5, watts=None),)
