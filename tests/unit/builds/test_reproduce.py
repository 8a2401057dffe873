"""Two builds in different surroundings; afterwards everything is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from envbuilder.builds import pipeline, project_layer, reproduce
from envbuilder.builds.image import records
from envbuilder.builds.plan import Artifact, BuildResult, CopyProject, MakeBase, Plan, project_of
from envbuilder.builds.request import Build, Request
from envbuilder.commands import reproduce as command
from envbuilder.core import settings as core_settings
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File, Target
from tests.support.engines import FakeEngine
from tests.support.folders import names_in
from tests.support.pipeline import a_build

QUIET = PlainProgress(lambda line: None)
CONTENT = b"a wheel"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


WHEEL = File(
    kind="wheel", name="x", version="1", file="x-1-py3-none-any.whl", sha256=sha(CONTENT),
    size=len(CONTENT), source="default", provenance="read", by="test",
)  # fmt: skip
Write = Callable[[Path, int], object]
EMPTY = Target(platform="linux/amd64", python="3.11", base=None, files=())


def planned(request: Request, settings: Settings, plan: Any) -> Build:
    """A build with a plan, of which nothing exists."""
    product: Any = SimpleNamespace(plan=plan, target=EMPTY)
    return replace(a_build(settings, request=request), plan=plan, product=product)


def with_result(build: Build, content: bytes) -> Build:
    """The build after its artifact was made of `content`."""
    plan = build.plan
    digest = f"sha256:{sha(content)}"
    config = {"config_digest": digest} if plan.artifact.kind == "image" else {}
    result = BuildResult(
        status="built", profile="x", backend=plan.backend, builder=plan.builder,
        artifact=replace(plan.artifact, digest=digest, **config),
        fingerprint=plan.fingerprint, seconds=1.5, made_by={plan.builder: "1"},
    )  # fmt: skip
    return replace(build, result=result)


def run(settings: Settings) -> Any:
    return reproduce.run(Request(profile="x"), settings, QUIET)


def shown(*options: str) -> Any:
    """What the command prints, and its exit code."""
    arguments = ["--profile", "x", *options]
    return CliRunner().invoke(
        command.command, arguments, standalone_mode=False, catch_exceptions=False
    )


class Seen:
    """What a pretended build saw of its surroundings."""

    def __init__(self, own: Settings, request: Request) -> None:
        self.request = request
        self.store = own.store_dir
        self.envs = own.envs_dir
        self.umask = os.umask(0)
        os.umask(self.umask)
        self.zone, self.here = time.tzname[0], Path.cwd()
        wheel = Store(own.store_dir).path(WHEEL.sha256)
        self.content, self.inode = wheel.read_bytes(), wheel.stat().st_ino
        self.bases = names_in(own.cache_dir / "bases")


@pytest.fixture
def builds(found: Settings, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Seen], list[Write]]:
    """Pretended builds: what they saw, and what they are to write into the prefix."""
    seen: list[Seen] = []
    writes: list[Write] = [lambda prefix, number: (prefix / "same").write_text("same")]
    bases = found.cache_dir / "bases"
    for name in ("given", "made"):
        (bases / name).mkdir(parents=True)
    base = MakeBase(
        what="make", identity="0" * 64, ref="base:1", suite="bookworm", platform="linux/amd64",
        files=(), epoch=0, unpacked=False, layout=str(bases / "made"),
    )  # fmt: skip
    store = Store(found.store_dir)
    with store.receiving(WHEEL.sha256) as part:
        part.write_bytes(CONTENT)
        store.accept(part, WHEEL, "test")

    def prepare(request: Request, own: Settings, *args: Any, **options: Any) -> Any:
        artifact = Artifact(kind="venv", ref=str(own.envs_dir / "x"))
        plan = SimpleNamespace(
            backend="venv", artifact=artifact, builder="uv", fingerprint="f", files=(WHEEL,),
            steps=(base,),
        )  # fmt: skip
        return planned(request, own, plan)

    def finish(build: Any) -> Any:
        seen.append(Seen(build.settings, build.request))
        prefix = Path(build.plan.artifact.ref)
        prefix.mkdir(parents=True)
        for write in writes:
            write(prefix, len(seen))
        files = sorted(p for p in prefix.iterdir() if p.is_file())
        return with_result(build, b"".join(p.read_bytes() for p in files))

    monkeypatch.setattr(pipeline, "prepare", prepare)
    monkeypatch.setattr(pipeline, "finish", finish)
    monkeypatch.setattr(core_settings, "load", lambda **_: found)
    return seen, writes


def test_the_second_build_sees_other_surroundings(
    found: Settings, builds: tuple[list[Seen], list[Write]]
) -> None:
    before = Path.cwd(), time.tzname, {n: os.environ.get(n) for n in reproduce.SURROUNDINGS}
    outcome = run(found)
    assert outcome.status == "equal"
    assert outcome.seconds == (1.5, 1.5)
    assert outcome.made_by == {"uv": "1"}
    (first, second), _ = builds
    for s in (first, second):
        assert s.request.rebuild
    assert first.store == found.store_dir
    assert second.content == first.content == CONTENT
    assert second.inode != first.inode, "a copy, not a link"
    assert (second.umask, second.zone) == (reproduce.UMASK, "XYZ")
    assert (first.bases, second.bases) == ({"given", "made"}, {"given"})
    for name in ("store", "envs", "umask", "zone", "here"):
        assert getattr(first, name) != getattr(second, name), name
    assert found.envs_dir not in {first.envs, second.envs}
    # Everything is as it was, and nothing of it stays.
    after = Path.cwd(), time.tzname, {n: os.environ.get(n) for n in reproduce.SURROUNDINGS}
    assert after == before
    assert first.umask == Seen(found, Request()).umask
    assert list((found.cache_dir / "reproduce").iterdir()) == []
    assert not found.data_dir.exists()


def test_what_differs_is_named_and_exits_1(builds: tuple[list[Seen], list[Write]]) -> None:
    _, writes = builds
    writes.append(lambda prefix, number: (prefix / "stamp").write_text(str(number)))
    done = shown("--json")
    assert done.return_value == 1
    data = json.loads(done.stdout)
    assert (data["schema"], data["status"], data["diffoscope"]) == (1, "different", None)
    assert "manifest_digests" not in data, "unknown"
    assert len(set(data["digests"])) == 2
    digests = [f"sha256:{sha(content)}" for content in (b"1", b"2")]
    assert data["differences"] == [
        {"path": "stamp", "layer": 0, "how": "content", "digests": digests}
    ]
    text = shown().stdout
    assert "x (venv, uv 1): different, built in 1.5 s and 1.5 s" in text
    assert re.search(r"  stamp: content: sha256:\w{64} and sha256:\w{64}\n", text)


def test_a_builder_is_for_images(builds: tuple[list[Seen], list[Write]]) -> None:
    with pytest.raises(InvalidError, match="--builder is for images"):
        shown("--builder", "layers")


def test_what_is_equal_exits_0(builds: tuple[list[Seen], list[Write]]) -> None:
    done = shown()
    assert done.return_value == 0
    assert done.stdout.startswith("x (venv, uv 1): equal, tree sha256:")


def test_a_build_that_fails_leaves_nothing(
    found: Settings, builds: tuple[list[Seen], list[Write]]
) -> None:
    _, writes = builds

    def fail(prefix: Path, number: int) -> None:
        if number == 2:
            raise BuildError("no")

    writes.append(fail)
    here = Path.cwd()
    umask = os.umask(0o022)
    with pytest.raises(BuildError, match="no"):
        run(found)
    assert os.umask(umask) == 0o022
    assert Path.cwd() == here
    assert list((found.cache_dir / "reproduce").iterdir()) == []


def test_an_image_of_a_trial_is_removed_whatever_happens(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: set[str] = set()
    removed: list[str] = []

    def prepare(request: Request, own: Settings, *args: Any, **options: Any) -> Any:
        artifact = Artifact(kind="image", ref=str(request.only_tag))
        plan = SimpleNamespace(
            backend="docker", artifact=artifact, builder="buildkit", files=(), steps=()
        )
        return planned(request, own, plan)

    def finish(build: Any) -> Any:
        if there:
            raise BuildError("the second fails")
        there.add(str(build.request.only_tag))
        return build

    monkeypatch.setattr(pipeline, "prepare", prepare)
    monkeypatch.setattr(pipeline, "finish", finish)
    engine = FakeEngine().serve(monkeypatch)
    monkeypatch.setattr(engine, "forget", removed.append)
    with pytest.raises(BuildError, match="the second fails"):
        run(found)
    assert there < set(removed)
    for ref in removed:
        assert ref.startswith("envbuilder-reproduce:")


def test_an_image_that_cannot_be_removed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ref: str) -> None:
        raise BuildError(f"{ref}: cannot be removed: timed out")

    engine = FakeEngine().serve(monkeypatch)
    monkeypatch.setattr(engine, "forget", fail)
    said: list[str] = []
    reproduce._forget("trial:1", PlainProgress(said.append))
    assert said == ["note: an image of these builds remains: trial:1: cannot be removed: timed out"]


def test_podman_is_refused_before_anything_is_built(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(artifact=Artifact(kind="image", ref="x"), builder="buildah", files=())
    monkeypatch.setattr(pipeline, "prepare", lambda *_, **__: SimpleNamespace(plan=plan))
    with pytest.raises(InvalidError, match="Buildah"):
        run(found)


def test_only_so_many_differences_are_listed(
    found: Settings, builds: tuple[list[Seen], list[Write]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "LISTED", 2)
    _, writes = builds
    for name in "abc":
        writes.append(lambda prefix, number, n=name: (prefix / n).write_text(str(number)))
    outcome = run(found)
    assert [d.path for d in outcome.differences] == ["a", "b"]
    assert outcome.more == 1


class Bench:
    """A project, and pretended images that hold nothing but its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        (self.folder / "src").mkdir(parents=True)
        (self.folder / "envbuilder.yaml").write_text(
            "files: [train.py, src]\nenvironments: {test: {}}\n"
        )
        for name in ("train.py", "src/a.py"):
            (self.folder / name).write_text(name)
        places = {f"ENVBUILDER_{n}_DIR": str(folder / n) for n in ("CONFIG", "CACHE", "DATA")}
        self.settings = load_settings(places, self.folder)
        self.read_from: list[Path] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens after the first build."""

    def prepare(self, request: Request, settings: Settings, *args: Any, **options: Any) -> Any:
        layer = project_layer.planned(settings) if request.with_project else None
        steps = (CopyProject(what="copy", project=layer, folder="files"),) if layer else ()
        plan = Plan(
            profile="x", backend="docker", builder="layers", platform="linux/amd64", python="3.12",
            fingerprint=layer.digest if layer else "", workdir="", files=(), steps=steps,
            artifact=Artifact(kind="image", ref=str(request.only_tag)),
        )  # fmt: skip
        return planned(request, settings, plan)

    def finish(self, build: Build) -> Build:
        layer = project_of(build.plan)
        assert layer, "the image lacks the project's files"
        target = build.settings.data_dir / "image"
        shutil.rmtree(target, ignore_errors=True)
        project_layer.copy(layer, target)
        content = b"".join((target / file.path).read_bytes() for file in layer.files)
        self.read_from.append(Path(layer.folder))
        self.meanwhile()
        return with_result(build, content)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    laid = Bench(tmp_path)
    monkeypatch.setattr(pipeline, "prepare", laid.prepare)
    monkeypatch.setattr(pipeline, "finish", laid.finish)
    FakeEngine().serve(monkeypatch)
    return laid


def built(bench: Bench, **changes: Any) -> None:
    """An image of the project as it is now, which `build` has recorded."""
    request = Request(profile="x", with_project=True)
    build = bench.finish(bench.prepare(request, bench.settings))
    result = replace(build.result, **changes)
    digest = result.artifact.digest
    assert digest is not None
    record = records.ImageRecord(
        profile="x", fingerprint=result.fingerprint, ref="envbuilder/x:1", digest=digest,
        ids=(digest,), builder=result.builder, made_by={},
    )  # fmt: skip
    records.keep(bench.settings.records_dir / result.fingerprint, record)
    records.keep_project(build.plan, result.artifact, bench.settings)
    bench.read_from.clear()


def test_the_second_build_reads_copies_of_the_projects_files(bench: Bench) -> None:
    outcome = run(bench.settings)
    layer = project_layer.planned(bench.settings)
    assert (outcome.status, outcome.fingerprint) == ("equal", layer.digest)
    first, second = bench.read_from
    assert first == bench.folder
    assert second.is_relative_to(bench.settings.cache_dir / "reproduce")
    assert not second.exists()


def test_files_that_change_between_the_builds_are_named(bench: Bench) -> None:
    def edit() -> None:
        (bench.folder / "train.py").write_text("changed")
        (bench.folder / "src/a.py").unlink()
        (bench.folder / "src/new.py").write_text("")

    bench.meanwhile = edit
    expected = "files changed between the two builds: src/a.py, src/new.py, train.py"
    with pytest.raises(BuildError, match=expected):
        run(bench.settings)
    assert len(bench.read_from) == 1


OTHER = Artifact(kind="image", ref="x", digest=f"sha256:{'0' * 64}")


@pytest.mark.parametrize(
    ("changes", "edited", "line"),
    [
        ({}, (), "  the image that build made: envbuilder/x:1\n"),
        ({}, ("src/new.py", "train.py"), "  changed since then in the project: src/new.py, train"),
        ({"artifact": OTHER}, (), "  the project's files are the same: something else changed"),
    ],
)
def test_the_last_image_of_the_project_is_the_same_or_it_is_said_what_changed(
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    edited: tuple[str, ...],
    line: str,
) -> None:
    built(bench, **changes)
    for name in edited:
        (bench.folder / name).write_text("changed")
    outcome = run(bench.settings)
    assert (outcome.status, outcome.built.changed) == ("equal", edited)
    is_same = not (changes or edited)
    assert (outcome.built.digest == outcome.digests[0]) == is_same
    command._print(outcome)
    shown = capsys.readouterr().out
    assert line in shown
    assert ("not the image that build made: envbuilder/x:1, config" in shown) != is_same


def test_only_images_of_the_same_project_and_builder_are_compared(bench: Bench) -> None:
    built(bench, builder="buildkit")
    assert run(bench.settings).built is None
    built(bench)
    assert run(bench.settings).built is not None
    bench.settings = replace(bench.settings, environment="test")
    assert run(bench.settings).built is None
