"""`watch`: which exit code a watched command ends with, and what becomes of its report."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from envbuilder.builds.access import NOTHING, Access
from envbuilder.commands import watch
from envbuilder.commands.watch import Watching
from envbuilder.core import console, process
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.core.files import MARKER
from envbuilder.core.settings import Settings
from envbuilder.watch import judge, model
from envbuilder.watch.model import Loader
from tests.support.command_line import Command
from tests.support.folders import names_in
from tests.support.watched import observed, on_cpu, placed, watched, work


def watching(
    output: Path | None = None,
    html: Path | None = None,
    device: str | None = None,
    earlier: Any = None,
) -> Watching:
    """How a command is watched, whose report and page go to these files."""
    file, page = watch.places(output, html)
    return Watching(device=device, file=file, page=page, earlier=earlier)


WORDS = ("python", "train.py", "caf\udce9", "--hf-token", "hf_secret")
Run = Callable[..., int]


@pytest.fixture
def run(own: Settings, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(watching(…), code=…, processes=…)`: watch a command that ends so, and saw that."""

    def start(how: Watching, *, code: int | ToolError = 0, processes: Sequence[Any] = ()) -> int:
        def accompany(argv: Sequence[str], env: Mapping[str, str]) -> int:
            assert argv == WORDS
            if isinstance(code, ToolError):
                raise code
            out = Path(env["PYTHONPATH"]).parent / "out"
            for number, each in enumerate(processes):
                (out / f"{number}.json").write_bytes(msgspec.json.encode(each))
            return code

        monkeypatch.setattr(process, "accompany", accompany)

        def become(argv: Any, environ: Any, access: Access, start: Any) -> int:
            return int(start(argv, {"PYTHONPATH": str(access.python_path[0])}))

        environment = SimpleNamespace(
            become=become,
            plan=SimpleNamespace(
                fingerprint="ab" * 32, lock="cd" * 32, artifact=SimpleNamespace(ref="/env")
            ),
        )
        expects = SimpleNamespace(device="cuda", kernels=("zentorch::",))
        profile = SimpleNamespace(name="cuda", expects=expects)
        build: Any = SimpleNamespace(
            settings=own, environment=environment, backend="venv", profile=profile
        )
        return how.run(build, WORDS, NOTHING)

    return start


ELSEWHERE = msgspec.structs.replace(
    observed(),
    devices=(model.Device(device="cpu"),),
    work=(),
    parameters=(model.Placed(device="cpu", dtype="float32", bytes=1 << 20),),
)


@pytest.mark.parametrize(
    ("processes", "code", "device", "ends"),
    [
        ((observed(),), 0, None, 0),
        ((observed(),), 3, None, 3),
        ((ELSEWHERE,), 0, None, 5),
        ((ELSEWHERE,), 7, None, 7),
        ((ELSEWHERE,), 137, None, 137),
        ((ELSEWHERE,), 0, "cpu", 0),
        ((), 0, None, 0),
    ],
)
def test_the_code_is_the_commands_own_or_5(
    processes: tuple[Any, ...],
    code: int,
    device: str | None,
    ends: int,
    run: Run,
    tmp_path: Path,
) -> None:
    path = tmp_path / "watch.json"
    assert run(watching(path, device=device), code=code, processes=processes) == ends
    kept = model.read(path)
    assert (kept.exit_code, kept.profile, kept.lock) == (code, "cuda", "cd" * 32)
    assert kept.command == ("python", "train.py", "caf\\udce9", "--hf-token", "…")


def test_the_report_is_written_where_it_is_wanted(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    html = tmp_path / "out.html"
    assert run(watching(output, html), processes=(observed(),)) == 0
    assert json.loads(output.read_text())["kind"] == "watch"
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out == ""


def test_a_report_that_cannot_be_written_changes_no_code_and_loses_no_other(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = watching(tmp_path / "there", tmp_path / "page.html")
    (tmp_path / "there").mkdir()  # meanwhile, by the command
    monkeypatch.setattr(console.VERBOSITY, "quiet", True)
    assert run(wanted, code=3, processes=(observed(),)) == 3
    error = capsys.readouterr().err
    assert f"warning: {tmp_path / 'there'}: already exists and is a different type of file" in error
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_place_that_cannot_be_written_is_refused_before_the_command_runs(
    tmp_path: Path, envbuilder: Command
) -> None:
    (tmp_path / "lock.json").write_text('{"schema": 1, "profile": "cpu", "targets": []}')
    error = envbuilder("watch", "--output", str(tmp_path / "lock.json"), "--", "true", code=125).err
    assert "lock.json: already exists and is a different type of file" in error


@pytest.mark.soak
def test_a_report_is_never_larger_than_can_be_read(tmp_path: Path) -> None:
    process = observed(unseen=("x" * 200,) * 64, losses=tuple((n, 0.5) for n in range(512)))
    many = watched(*[process] * 256)
    report = model.readable(many)
    assert len(report.processes) + report.left_out == 256
    path = tmp_path / "watch.json"
    path.write_text(model.encoded(report))
    assert model.read(path) == report
    assert model.readable(watched(*[observed()] * 160)).left_out == 0


def test_it_is_compared_with_an_earlier_one(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = judge.judged(watched(observed()))
    assert run(watching(earlier=earlier), processes=(observed(),)) == 0
    assert "about as fast" in capsys.readouterr().err


def test_a_command_that_does_not_start_leaves_nothing(run: Run, own: Settings) -> None:
    with pytest.raises(ToolError):
        run(watching(), code=ToolError("nosuch: not found"))
    assert [*(own.data_dir / "runs").iterdir()] == [own.data_dir / "runs" / MARKER]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cudda"), "'cudda' is not one of 'cuda', 'rocm'"),
        (("--against", "nosuch.json"), "nosuch.json: cannot be read"),
        (("--against", "other.json"), "other.json: damaged"),
    ],
)
def test_wrong_arguments_are_125_before_anything_is_built(
    arguments: tuple[str, ...],
    words: str,
    own: Settings,
    envbuilder: Command,
    tmp_path: Path,
) -> None:
    (tmp_path / "other.json").write_text("{}")
    ended = envbuilder("watch", *arguments, "--", "true", code=125)
    assert ended.out == ""
    assert words in ended.err
    assert names_in(tmp_path) == {"other.json"}


OBSERVED = {"framework": "torch", "version": "2", "pid": 1, "seconds": 1.0}


def test_the_hook_is_laid_for_one_command_and_leaves_nothing(tmp_path: Path) -> None:
    with watch.Session.laid(tmp_path) as session:
        names = names_in(session.hook)
        assert {"sitecustomize.py", "record.py", "torch_.py"} <= names
        assert "__init__.py" not in names
        with watch.Session.laid(tmp_path) as beside:
            assert beside.hook != session.hook
        assert session.hook.is_dir()
    assert [*tmp_path.iterdir()] == []


def test_a_killed_commands_folder_goes_with_the_next_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "0a").mkdir()
    (tmp_path / "0a.lock").touch()
    (tmp_path / "laid").mkdir()
    with watch.Session.laid(tmp_path) as running:
        assert not (tmp_path / "0a").exists()
        with watch.Session.laid(tmp_path):
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
        with watch.Session.laid(tmp_path, owner=(1234, 5678)) as session:
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
    with watch.Session.laid(tmp_path) as session:
        for pid, steps in (("1", {}), ("2", {"steps": 3, "losses": [[1, 2.0]]}), ("3", {})):
            part = json.dumps({**OBSERVED, **steps})
            (session.folder / f"out/{pid}.json").write_text(part)
        parts, left_out = session.parts()
    assert [part.steps for part in parts] == [3]
    assert left_out == 2


def test_damaged_foreign_and_too_many_parts_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MOST_PROCESSES", 5)
    with watch.Session.laid(tmp_path) as session:
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
    monkeypatch.setattr(watch, "_SECONDS", 0.001)

    monkeypatch.setattr(process, "accompany", lambda *_: int(again.wait(5)))
    running = watch.Running(in_container=True)
    assert running.start(("true",), {}) == 1
    assert running.machine.other_seconds is None
    assert running.machine.gpus == (model.Gpu(index=0, name="A GPU", utilization=0.5, watts=None),)


SLOW = {"training_seconds": 80.0}
WAITING = {"loader": Loader(batches=1200, waited=30.0, workers=0)}


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"schema": 1}', '{"schema": 2, "kind": "watch"}', "[" * 100_000, "NaN"],
)
def test_a_damaged_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(InvalidError, match=r"report\.json: damaged"):
        model.read(path)


@pytest.mark.parametrize(
    ("now", "before", "sentences"),
    [
        ({}, {}, ["about as fast: 640 samples/s, before 640 samples/s"]),
        (SLOW, {}, ["slower: 480 samples/s, before 640 samples/s"]),
        ({}, SLOW, ["faster: 640 samples/s, before 480 samples/s"]),
        ({"samples": 0, **SLOW}, {}, []),
        (
            {"work": (work(dtype="bfloat16"),), "version": "2.15"},
            {},
            [
                "about as fast: 640 samples/s, before 640 samples/s",
                "dtype: bfloat16, before float32",
                "framework: torch 2.15, before torch 2.14.1+cu130",
            ],
        ),
        (
            {"work": (work("cuda:1"),), "parameters": (placed("cuda:1"),), **SLOW},
            {},
            [
                "slower: 480 samples/s, before 640 samples/s",
                "device: cuda:1, before A GPU (cuda:0)",
            ],
        ),
        (WAITING, {}, ["about as fast: 640 samples/s, before 640 samples/s", "new: data"]),
        ({}, WAITING, ["about as fast: 640 samples/s, before 640 samples/s", "gone: data"]),
    ],
)
def test_what_changed_is_said(
    now: dict[str, Any], before: dict[str, Any], sentences: list[str]
) -> None:
    reports = [judge.judged(watched(observed(**changes))) for changes in (now, before)]
    assert watch.changes(*reports) == sentences


def test_what_was_not_seen_is_unknown() -> None:
    nothing = watched(processes=())
    assert (judge.device(nothing), judge.dtype(nothing), judge.framework(nothing)) == (
        "unknown",
        "unknown",
        "",
    )
    parameters = on_cpu(work=(), parameters=(placed("cpu", "float16"),))
    assert judge.dtype(watched(parameters)) == "float16"
