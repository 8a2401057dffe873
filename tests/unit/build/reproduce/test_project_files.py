"""Two builds of an image that contains the project's own files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.build import project_layer, workflow
from envbuilder.build.plan import Artifact, BuildResult, CopyProject, Plan, project_of
from envbuilder.build.reproduce import builds
from envbuilder.build.request import Request
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.packages import configuration
from tests.support.engines import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.core.settings import Settings


class Bench:
    """A project, and pretended images that hold nothing but its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        (self.folder / "src").mkdir(parents=True)
        (self.folder / "envbuilder.yaml").write_text("files: [train.py, src]\n")
        for name in ("train.py", "src/a.py"):
            (self.folder / name).write_text(name)
        places = {f"ENVBUILDER_{n}_DIR": str(folder / n) for n in ("CONFIG", "CACHE", "DATA")}
        self.settings = configuration.load(places, self.folder)
        self.read_from: list[Path] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens after the first build."""

    def prepare(self, request: Request, settings: Settings, *args: Any) -> Any:
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
        return SimpleNamespace(product=SimpleNamespace(plan=plan, target=None))

    def build(self, product: Any, request: Request, settings: Settings, *args: Any) -> BuildResult:
        layer = project_of(product.plan)
        assert layer, "the image lacks the project's files"
        target = settings.data_dir / "image"
        project_layer.copy(layer, target)
        content = b"".join((target / file.path).read_bytes() for file in layer.files)
        self.read_from.append(Path(layer.folder))
        self.meanwhile()
        return BuildResult(
            status="built",
            profile="x",
            backend="docker",
            builder="layers",
            artifact=product.plan.artifact.identified(
                f"sha256:{hashlib.sha256(content).hexdigest()}", None
            ),
            fingerprint=product.plan.fingerprint,
            seconds=1.0,
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    laid = Bench(tmp_path)
    monkeypatch.setattr(workflow, "prepare_to_build", laid.prepare)
    monkeypatch.setattr(workflow, "build", laid.build)
    FakeEngine().serve(monkeypatch)
    return laid


def run(bench: Bench) -> Any:
    return builds.run(Request(profile="x"), bench.settings, PlainProgress(lambda line: None))


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
