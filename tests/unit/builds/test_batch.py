"""Several profiles in one command: failures apart, one exit code, one interruption for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.builds import batch, execute, pipeline
from envbuilder.builds.batch import Outcome
from envbuilder.builds.plan import Artifact, BuildResult
from envbuilder.builds.request import Request
from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    HostError,
    InvalidError,
    ToolError,
    VerifyError,
)
from envbuilder.core.settings import Settings
from envbuilder.packages import store
from envbuilder.packages.store import Room
from tests.support.pipeline import Said, a_build

REQUEST = Request(backend="venv")


class Products:
    """What is prepared and built in place of real products."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepared: dict[str, EnvbuilderError] = {}
        self.jobs: dict[str, Callable[[Any], None]] = {}
        self.built: list[str] = []
        self.files: dict[str, tuple[Any, ...]] = {}
        self.existing = set[str]()

    def prepare(self, request: Request, settings: Settings, progress: Any, running: bool) -> Any:
        name = str(request.profile)
        progress.note("is planned")
        if error := self.prepared.get(name):
            raise error
        files = self.files.get(name, ())
        plan = SimpleNamespace(
            profile=name,
            backend=request.backend,
            workdir=str(self.folder / name),
            files=files,
            room=(Room(folder=str(self.folder), bytes=sum(f.room for f in files)),),
        )
        existing = object() if name in self.existing else None
        product: Any = SimpleNamespace(existing=lambda: existing)
        return replace(a_build(settings, request=request), product=product, plan=plan)

    def finish(self, build: Any, sharing: Any) -> Any:
        name = str(build.request.profile)
        self.built.append(name)
        with sharing.turn, build.progress.task("install"):
            self.jobs.get(name, lambda progress: None)(build.progress)
        result = BuildResult(
            status="built",
            profile=name,
            backend="venv",
            builder="",
            artifact=Artifact(kind="venv", ref=f"/envs/{name}"),
            fingerprint="0" * 64,
            seconds=1.0,
        )
        return replace(build, result=result)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Products:
    stand_in = Products(tmp_path)
    monkeypatch.setattr(pipeline, "prepare", stand_in.prepare)
    monkeypatch.setattr(pipeline, "finish", stand_in.finish)
    return stand_in


def run(found: Settings, *names: str, said: Said | None = None) -> tuple[Outcome, ...]:
    progress = said or Said()
    planned = batch.prepare(names, REQUEST, found, progress)
    return batch.finish(planned, found, progress)


def failing(error: Exception) -> Callable[[Any], None]:
    return Mock(side_effect=error)


def test_a_profile_that_fails_does_not_stop_the_others(found: Settings, products: Products) -> None:
    products.prepared["cuda"] = HostError("no GPU")
    products.jobs["zendnn"] = failing(BuildError("wrong hash"))
    products.jobs["rocm"] = failing(ZeroDivisionError("of ours"))
    said = Said()
    outcomes = run(found, "cpu", "cuda", "zendnn", "rocm", said=said)
    assert [o.profile for o in outcomes] == ["cpu", "cuda", "zendnn", "rocm"]
    assert [o.error.message if o.error else "" for o in outcomes] == [
        "",
        "no GPU",
        "wrong hash",
        "unexpected ZeroDivisionError: of ours",
    ]
    assert outcomes[0].result is not None
    assert batch.exit_code(outcomes) == 3, "the host is checked before anything is built"
    assert "--profile rocm --debug" in outcomes[3].error.hint if outcomes[3].error else False
    assert {"cpu: is planned", "cuda: is planned", "cpu: · install"} <= set(said.lines)


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ((), 0),
        ((BuildError, VerifyError), 1),
        ((BuildError, ToolError), 4),
        ((ToolError, HostError), 3),
        ((HostError, InvalidError, BuildError), 2),
    ],
)
def test_the_exit_code_is_that_of_the_earliest_check(
    kinds: tuple[type[EnvbuilderError], ...], code: int
) -> None:
    outcomes = [Outcome("ok"), *(Outcome("x", error=kind("no")) for kind in kinds)]
    assert batch.exit_code(outcomes) == code


@pytest.mark.parametrize(
    ("backend", "free", "existing", "built"),
    [
        ("venv", 35, "", ["cpu", "xpu", "zendnn"]),  # 15 to download, 10 for each environment
        ("venv", 34, "", ["xpu"]),
        ("venv", 20, "cpu", ["cpu", "xpu", "zendnn"]),
        ("docker", 30, "", ["cpu", "xpu", "zendnn"]),  # the layer that both have is stored once
        ("docker", 29, "", ["xpu"]),
    ],
)
def test_the_disks_must_have_room_for_all_builds_together(
    found: Settings,
    products: Products,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    free: int,
    existing: str,
    built: list[str],
) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    common, one, other = (SimpleNamespace(sha256=digit * 64, room=5) for digit in "abc")
    products.files = {"cpu": (common, one), "zendnn": (common, other)}
    products.existing = {"xpu", existing}
    request = Request(backend=backend)
    planned = batch.prepare(("cpu", "xpu", "zendnn"), request, found, Said())
    outcomes = batch.finish(planned, found, Said())
    assert sorted(products.built) == built
    errors = {o.profile: o.error.message for o in outcomes if o.error}
    assert errors.keys() == {"cpu", "xpu", "zendnn"} - {*built}
    for message in errors.values():
        assert "not enough space" in message


def test_builds_run_at_the_same_time(found: Settings, products: Products) -> None:
    both = threading.Barrier(2, timeout=60)
    products.jobs = dict.fromkeys(("cpu", "zendnn"), lambda progress: both.wait() and None)
    for outcome in run(found, "cpu", "zendnn"):
        assert outcome.result


def test_an_interruption_reaches_every_build_and_leaves_no_working_folder(
    found: Settings, products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One build works, one waits for its turn, and one for something that never answers."""
    monkeypatch.setattr(batch, "_CLEANUP_SECONDS", 0.5)
    hangs = threading.Event()
    ended = list[str]()
    started = threading.Barrier(3, timeout=60)

    def works(progress: Any) -> None:
        try:
            started.wait()
            while True:
                hangs.wait(0.001)
        except KeyboardInterrupt:
            ended.append("works")
            raise

    def waits(progress: Any) -> None:
        (products.folder / "rocm").mkdir()
        try:
            started.wait()
            hangs.wait()
        finally:
            hangs.wait()  # its cleanup does not end either

    products.jobs = {"cpu": works, "rocm": waits}

    def interrupt(jobs: Any) -> Any:
        started.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(batch.futures, "as_completed", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(found, "cpu", "rocm", "zendnn")
        assert ended == ["works"]
        assert not (products.folder / "rocm").exists()
    finally:
        hangs.set()


def test_whatever_a_build_reports_after_an_interruption_ends_it() -> None:
    said = Said()
    stopping = threading.Event()
    lines = batch._lines("cpu", said.note, stopping)
    with lines.task("fetch", 10, "bytes") as task:
        task.advance(1)
        stopping.set()
        for report in (lambda: task.advance(1), lambda: task.update(2), lambda: lines.note("x")):
            with pytest.raises(KeyboardInterrupt):
                report()
    assert said.lines == ["cpu: · fetch (0 MB)"]


@pytest.mark.parametrize(
    ("cores", "builds"), [(1, 2), (2, 2), (4, 2), (6, 3), (8, 4), (64, 4), (256, 4)]
)
def test_the_number_of_builds_follows_from_the_cores(cores: int, builds: int) -> None:
    assert execute.builds_at_once(cores) == builds
