"""Two builds in different surroundings; afterwards everything is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from envbuilder.builds import pipeline, reproduce
from envbuilder.builds.backends import integrity
from envbuilder.builds.plan import Artifact, BuildResult, CopyProject, MakeBase
from envbuilder.builds.request import Built, Planned, Request, advance
from envbuilder.commands import reproduce as command
from envbuilder.core import settings as core_settings
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File, Target
from tests.support import project_layers
from tests.support.engines import FakeEngine
from tests.support.folders import names_in
from tests.support.pipeline import a_build
from tests.support.progress import SILENT

CONTENT = b"a wheel"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


WHEEL = File(
    kind="wheel", name="x", version="1", file="x-1-py3-none-any.whl", sha256=sha(CONTENT),
    size=len(CONTENT), source="default", provenance="read", by="test",
)  # fmt: skip
Write = Callable[[Path, int], object]
EMPTY = Target(platform="linux/amd64", python="3.11", base=None, files=())


def planned(request: Request, settings: Settings, plan: Any) -> Planned:
    """A build with a plan, of which nothing exists."""
    product: Any = SimpleNamespace(plan=plan, target=EMPTY)
    return advance(a_build(settings, request=request), Planned, product=product)


def with_result(build: Planned, content: bytes) -> Built:
    """The build after its artifact was made of `content`."""
    plan = build.plan
    digest = f"sha256:{sha(content)}"
    config = {"config_digest": digest} if plan.artifact.kind == "image" else {}
    result = BuildResult(
        status="built", profile="x", backend=plan.backend, builder=plan.builder,
        artifact=replace(plan.artifact, digest=digest, **config),
        fingerprint=plan.fingerprint, seconds=1.5, made_by={plan.builder: "1"},
    )  # fmt: skip
    return advance(build, Built, result=result)


def run(settings: Settings) -> Any:
    return reproduce.run(Request(profile="x"), settings, SILENT)


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
        assert s.request.with_project
    assert first.request.project_copy is None
    assert second.request.project_copy.is_relative_to(found.cache_dir / "reproduce")
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
    assert data["schema"] == 1
    assert data["status"] == "different"
    assert "manifest_digests" not in data, "unknown"
    assert len(set(data["digests"])) == 2
    digests = [f"file {sha(content)}" for content in (b"1", b"2")]
    assert data["differences"] == [{"path": "stamp", "digests": digests}]
    text = shown().stdout
    assert "x (venv, uv 1): different, built in 1.5 s and 1.5 s" in text
    assert f"\n  stamp: file {sha(b'3')} and file {sha(b'4')}\n" in text
    assert "more" not in text
    for number in range(20):
        writes.append(lambda prefix, n, file=f"{number}": (prefix / file).write_text(str(n)))
    assert "\n  and 1 more: see --json\n" in shown().stdout


def test_a_builder_is_for_images(builds: tuple[list[Seen], list[Write]]) -> None:
    with pytest.raises(InvalidError, match="--builder applies only to images"):
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
    assert said == [
        "note: an image of these builds was not removed: trial:1: cannot be removed: timed out"
    ]


def test_podman_is_refused_before_anything_is_built(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(artifact=Artifact(kind="image", ref="x"), builder="buildah", files=())
    monkeypatch.setattr(pipeline, "prepare", lambda *_, **__: SimpleNamespace(plan=plan))
    with pytest.raises(InvalidError, match="Buildah"):
        run(found)


def with_project(folder: Path, files: dict[str, bytes]) -> Any:
    """A plan of an image with these files of a project."""
    layer = project_layers.lay(folder, files)
    return SimpleNamespace(steps=(CopyProject(what="copy", project=layer, folder="files"),))


def test_the_second_build_reads_copies_of_the_projects_files(tmp_path: Path) -> None:
    files = {"train.py": b"1", "src/a.py": b"2"}
    first = with_project(tmp_path / "mine", files)
    reproduce._copy_project(first, with_project(tmp_path / "mine", files), tmp_path / "copy")
    assert {name: (tmp_path / "copy" / name).read_bytes() for name in files} == files


def test_files_that_change_between_the_builds_are_named(tmp_path: Path) -> None:
    first = with_project(tmp_path / "a", {"train.py": b"1", "src/a.py": b"2", "same": b""})
    second = with_project(tmp_path / "b", {"train.py": b"2", "src/new.py": b"", "same": b""})
    expected = "files changed between the two builds: src/a.py, src/new.py, train.py"
    with pytest.raises(BuildError, match=expected):
        reproduce._copy_project(first, second, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# --- what differs


def made(found: Settings, kind: str, ref: str) -> Built:
    result: Any = SimpleNamespace(artifact=Artifact(kind=kind, ref=ref))
    product: Any = SimpleNamespace(target=EMPTY)
    return advance(a_build(found), Built, product=product, result=result)


def test_images_are_compared_by_configuration_and_layer(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"created": "2026-01-01", "config": {"Env": ["A=1"]}}
    other = {"created": "2026-01-02", "config": {"Env": ["A=1"]}, "empty": {}}
    layers = {"first": (config, ["a", "b", "c"]), "second": (other, ["a", "d"])}
    FakeEngine(*layers).serve(monkeypatch)

    def export(_: Any, image: Any, folder: Path) -> Any:
        facts, ids = layers[image.tags[0]]
        read = {**facts, "rootfs": {"diff_ids": ids}}
        return SimpleNamespace(manifest=lambda _: None, read_config=lambda _: read)

    monkeypatch.setattr(reproduce.images, "export", export)
    sides = [reproduce.contents(made(found, "image", name), tmp_path) for name in layers]
    differences = {d.path: d.digests for d in reproduce.between(*sides)}
    assert [*differences] == [
        "configuration: created", "layer 2", "layer 3", "configuration: empty"
    ]  # fmt: skip
    assert differences["layer 2"] == ("b", "d")
    assert differences["layer 3"] == ("c", "nothing")
    assert differences["configuration: empty"][0] == "nothing"


def test_trees_are_compared_without_host_dependent_files(found: Settings, tmp_path: Path) -> None:
    contents = {"1": {"a": "1", "b": "same", "c": "", "d": ""}, "2": {"a": "2", "b": "same"}}
    for name, written in contents.items():
        (tmp_path / name / integrity.PLACED).parent.mkdir(parents=True)
        for path, text in {
            **written,
            "pyvenv.cfg": name,
            integrity.PLACED: f"{name}\n{integrity.PLACED}\n",
        }.items():
            (tmp_path / name / path).write_text(text)
    (tmp_path / "1/d").chmod(0o755)
    (tmp_path / "2/d").symlink_to("b")
    sides = [reproduce.contents(made(found, "venv", str(tmp_path / n)), tmp_path) for n in contents]
    differences = {d.path: d.digests for d in reproduce.between(*sides)}
    # What lists files to leave out is not left out itself.
    assert differences.keys() == {"a", "c", "d", integrity.PLACED}
    assert differences["c"] == (f"file {sha(b'')}", "nothing")
    assert differences["d"] == (f"executable {sha(b'')}", "link b")
