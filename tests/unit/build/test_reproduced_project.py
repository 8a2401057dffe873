"""Two builds of an image that contains the project's own files."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.build import pipeline, project_layer, reproduce
from envbuilder.build.image import records
from envbuilder.build.plan import Artifact, BuildResult, CopyProject, Plan, project_of
from envbuilder.build.request import Build, Request
from envbuilder.commands import reproduce as command
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import load as load_settings
from tests.support.engines import FakeEngine
from tests.support.pipeline import a_build

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.core.settings import Settings


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
            profile="x",
            backend="docker",
            builder="layers",
            platform="linux/amd64",
            python="3.12",
            fingerprint=layer.digest if layer else "",
            artifact=Artifact(kind="image", ref=str(request.only_tag)),
            workdir="",
            files=(),
            steps=steps,
        )
        product: Any = SimpleNamespace(plan=plan, target=None)
        return replace(a_build(settings, request=request), plan=plan, product=product)

    def finish(self, build: Build) -> Build:
        layer = project_of(build.plan)
        assert layer, "the image lacks the project's files"
        target = build.settings.data_dir / "image"
        shutil.rmtree(target, ignore_errors=True)
        project_layer.copy(layer, target)
        content = b"".join((target / file.path).read_bytes() for file in layer.files)
        self.read_from.append(Path(layer.folder))
        self.meanwhile()
        result = BuildResult(
            status="built",
            profile="x",
            backend="docker",
            builder="layers",
            artifact=build.plan.artifact.identified(
                f"sha256:{hashlib.sha256(content).hexdigest()}", None
            ),
            fingerprint=build.plan.fingerprint,
            seconds=1.0,
        )
        return replace(build, result=result)


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
        profile="x",
        fingerprint=result.fingerprint,
        ref="envbuilder/x:1",
        digest=digest,
        ids=(digest,),
        builder=result.builder,
        made_by={},
    )
    records.keep(bench.settings.records_dir / result.fingerprint, record)
    records.keep_project(build.plan, result.artifact, bench.settings)
    bench.read_from.clear()


def run(bench: Bench) -> Any:
    return reproduce.run(Request(profile="x"), bench.settings, PlainProgress(lambda line: None))


def test_the_second_build_reads_copies_of_the_projects_files(bench: Bench) -> None:
    outcome = run(bench)
    layer = project_layer.planned(bench.settings)
    assert layer is not None
    assert (outcome.status, outcome.fingerprint) == ("equal", layer.digest)
    first, second = bench.read_from
    assert first == bench.folder
    assert second.is_relative_to(bench.settings.cache_dir / "reproduce")
    assert not second.exists()


def test_files_that_change_between_the_builds_are_named(bench: Bench) -> None:
    def edit() -> None:
        (bench.folder / "train.py").write_text("changed")
        (bench.folder / "src" / "a.py").unlink()
        (bench.folder / "src" / "new.py").write_text("")

    bench.meanwhile = edit
    expected = "files changed between the two builds: src/a.py, src/new.py, train.py"
    with pytest.raises(BuildError, match=expected):
        run(bench)
    assert len(bench.read_from) == 1


def test_it_is_the_image_that_build_made(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    built(bench)
    outcome = run(bench)
    assert outcome.built.digest == outcome.digests[0]
    assert outcome.built.changed == ()
    command._print(outcome)
    assert "  the image that build made: envbuilder/x:1\n" in capsys.readouterr().out


def test_what_changed_since_the_image_was_built_is_named(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    built(bench)
    (bench.folder / "train.py").write_text("changed")
    (bench.folder / "src" / "new.py").write_text("")
    outcome = run(bench)
    assert (outcome.status, outcome.built.changed) == ("equal", ("src/new.py", "train.py"))
    assert outcome.built.digest != outcome.digests[0]
    command._print(outcome)
    told = capsys.readouterr().out
    assert f"  not the image that build made: envbuilder/x:1, config {outcome.built.digest}" in told
    assert "  changed since then in the project: src/new.py, train.py\n" in told


def test_an_image_that_differs_otherwise_is_not_blamed_on_the_project(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    built(bench, artifact=Artifact(kind="image", ref="x", digest=f"sha256:{'0' * 64}"))
    outcome = run(bench)
    assert outcome.built.changed == ()
    command._print(outcome)
    told = capsys.readouterr().out
    assert "  the project's files are the same: something else changed" in told


def test_only_images_of_the_same_project_and_builder_are_compared(bench: Bench) -> None:
    built(bench, builder="buildkit")
    assert run(bench).built is None
    built(bench)
    assert run(bench).built is not None
    bench.settings = replace(bench.settings, environment="test")
    assert run(bench).built is None
