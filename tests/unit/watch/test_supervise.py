"""The parent of a watched command: its folders, and what it reads back."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from envbuilder.core import process
from envbuilder.core.errors import InvalidError
from envbuilder.watch import model, supervise

OBSERVED = {"framework": "torch", "version": "2", "pid": 1, "seconds": 1.0}


def test_the_hook_is_laid_for_one_command_and_leaves_nothing(tmp_path: Path) -> None:
    with supervise.Session(tmp_path).laid() as session:
        names = {path.name for path in session.hook.iterdir()}
        assert {"sitecustomize.py", "record.py", "torch_.py"} <= names
        assert "__init__.py" not in names
        assert (tmp_path / ".envbuilder" / ".gitignore").read_text() == "*\n"
        with supervise.Session(tmp_path).laid() as beside:
            assert beside.hook != session.hook
        assert session.hook.is_dir()
    assert [path.name for path in (tmp_path / ".envbuilder").iterdir()] == [".gitignore"]


@pytest.mark.parametrize("name", [".envbuilder", ".envbuilder/watch"])
def test_no_link_is_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidError, match="is a link"), supervise.Session(tmp_path).laid():
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_no_path_list_can_hold_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidError, match="PYTHONPATH"),
        supervise.Session(tmp_path / "a:b").laid(),
    ):
        pass


def test_of_too_many_parts_the_largest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training has more to tell than what only imports its framework."""
    monkeypatch.setattr(model, "MOST_PROCESSES", 1)
    with supervise.Session(tmp_path).laid() as session:
        for pid, steps in (("1", {}), ("2", {"steps": 3, "losses": [[1, 2.0]]}), ("3", {})):
            part = json.dumps({**OBSERVED, **steps})
            (session.folder / "out" / f"{pid}.json").write_text(part)
        parts, left_out = session.parts()
    assert ([part.steps for part in parts], left_out) == ([3], 2)


def test_damaged_foreign_and_too_many_parts_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MOST_PROCESSES", 5)
    with supervise.Session(tmp_path).laid() as session:
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

    asked, again = list[int](), threading.Event()

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
