"""Two builds in different surroundings; afterwards everything is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from envbuilder.build import pipeline
from envbuilder.build import reproduce as trials
from envbuilder.build.plan import Artifact, BuildResult, MakeBase
from envbuilder.build.request import Request
from envbuilder.commands import reproduce as reproducing
from envbuilder.core import settings as core_settings
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support.engines import FakeEngine
from tests.support.pipeline import a_build

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

CONTENT = b"a wheel"
WHEEL = File(
    kind="wheel",
    name="x",
    version="1",
    file="x-1-py3-none-any.whl",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    source="default",
    provenance="read",
    by="test",
)
Write = Callable[[Path, int], object]


def product(plan: Any) -> Any:
    """A product with a plan, of which nothing exists."""
    return SimpleNamespace(plan=plan, target=None)


class Seen:
    """What a pretended build saw of its surroundings."""

    def __init__(self, own: Settings, request: Request) -> None:
        self.request, self.store, self.envs = request, own.store_dir, own.envs_dir
        self.umask = os.umask(0)
        os.umask(self.umask)
        self.zone, self.here = time.tzname[0], Path.cwd()
        wheel = Store(own.store_dir).path(WHEEL.sha256)
        self.content, self.inode = wheel.read_bytes(), wheel.stat().st_ino
        self.bases = {p.name for p in (own.cache_dir / "bases").iterdir()}


@pytest.fixture
def builds(found: Settings, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Seen], list[Write]]:
    """Pretended builds: what they saw, and what they are to write into the prefix."""
    seen: list[Seen] = []
    writes: list[Write] = [lambda prefix, number: (prefix / "same").write_text("same")]
    bases = found.cache_dir / "bases"
    for name in ("given", "made"):
        (bases / name).mkdir(parents=True)
    base = MakeBase(
        what="make",
        identity="0" * 64,
        ref="base:1",
        suite="bookworm",
        platform="linux/amd64",
        files=(),
        epoch=0,
        unpacked=False,
        layout=str(bases / "made"),
    )
    store = Store(found.store_dir)
    with store.receiving(WHEEL) as part:
        part.write_bytes(CONTENT)
        store.accept(part, WHEEL, "test")

    def prepare(request: Request, own: Settings, *args: Any, **options: Any) -> Any:
        prefix = own.envs_dir / "x"
        plan = SimpleNamespace(
            backend="venv",
            artifact=Artifact(kind="venv", ref=str(prefix)),
            builder="uv",
            files=(WHEEL,),
            steps=(base,),
        )
        return replace(a_build(own, request=request), plan=plan, product=product(plan))

    def finish(build: Any) -> Any:
        seen.append(Seen(build.settings, build.request))
        prefix = Path(build.plan.artifact.ref)
        prefix.mkdir(parents=True)
        for write in writes:
            write(prefix, len(seen))
        files = sorted(p for p in prefix.iterdir() if p.is_file())
        digest = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()
        result = BuildResult(
            status="built",
            profile="x",
            backend="venv",
            builder="uv",
            artifact=Artifact(kind="venv", ref=str(prefix), digest=f"sha256:{digest}"),
            fingerprint="f",
            seconds=1.5,
            made_by={"uv": "1"},
        )
        return replace(build, result=result)

    monkeypatch.setattr(pipeline, "prepare", prepare)
    monkeypatch.setattr(pipeline, "finish", finish)
    monkeypatch.setattr(core_settings, "load", lambda **_: found)
    return seen, writes


def test_the_second_build_sees_other_surroundings(
    found: Settings, builds: tuple[list[Seen], list[Write]]
) -> None:
    before = Path.cwd(), time.tzname, {n: os.environ.get(n) for n in trials.SURROUNDINGS}
    outcome = trials.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert outcome.status == "equal"
    assert outcome.seconds == (1.5, 1.5)
    assert outcome.made_by == {"uv": "1"}
    (first, second), _ = builds
    assert all(s.request.rebuild for s in (first, second))
    assert first.store == found.store_dir
    assert second.content == first.content == CONTENT
    assert second.inode != first.inode, "a copy, not a link"
    assert (second.umask, second.zone) == (trials.UMASK, "XYZ")
    assert (first.bases, second.bases) == ({"given", "made"}, {"given"})
    for name in ("store", "envs", "umask", "zone", "here"):
        assert getattr(first, name) != getattr(second, name), name
    assert found.envs_dir not in {first.envs, second.envs}
    # Everything is as it was, and nothing of it stays.
    assert (Path.cwd(), time.tzname, {n: os.environ.get(n) for n in trials.SURROUNDINGS}) == before
    assert first.umask == Seen(found, Request()).umask
    assert list((found.cache_dir / "reproduce").iterdir()) == []
    assert not found.data_dir.exists()


def test_what_differs_is_named_and_exits_1(builds: tuple[list[Seen], list[Write]]) -> None:
    _, writes = builds
    writes.append(lambda prefix, number: (prefix / "stamp").write_text(str(number)))
    done = CliRunner().invoke(
        reproducing.command, ["--profile", "x", "--json"], standalone_mode=False
    )
    assert done.return_value == 1
    data = json.loads(done.stdout)
    assert data["status"] == "different"
    assert len(set(data["digests"])) == 2
    digests = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"1", b"2")]
    assert data["differences"] == [
        {"path": "stamp", "layer": 0, "how": "content", "digests": digests}
    ]
    shown = CliRunner().invoke(reproducing.command, ["--profile", "x"], standalone_mode=False)
    assert "x (venv, uv 1): different, built in 1.5 s and 1.5 s" in shown.stdout
    assert re.search(r"  stamp: content: sha256:\w{64} and sha256:\w{64}\n", shown.stdout)


def test_a_builder_is_for_images(builds: tuple[list[Seen], list[Write]]) -> None:
    with pytest.raises(InvalidError, match="--builder is for images"):
        CliRunner().invoke(
            reproducing.command,
            ["--profile", "x", "--builder", "layers"],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_what_is_equal_exits_0(builds: tuple[list[Seen], list[Write]]) -> None:
    done = CliRunner().invoke(reproducing.command, ["--profile", "x"], standalone_mode=False)
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
    here, umask = Path.cwd(), os.umask(0o022)
    with pytest.raises(BuildError, match="no"):
        trials.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert os.umask(umask) == 0o022
    assert Path.cwd() == here
    assert list((found.cache_dir / "reproduce").iterdir()) == []


def test_an_image_of_a_trial_is_removed_whatever_happens(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: set[str] = set()
    removed: list[str] = []

    def prepare(request: Request, own: Settings, *args: Any, **options: Any) -> Any:
        plan = SimpleNamespace(
            backend="docker",
            artifact=Artifact(kind="image", ref=request.only_tag),
            builder="buildkit",
            files=(),
            steps=(),
        )
        return replace(a_build(own, request=request), plan=plan, product=product(plan))

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
        trials.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert there < set(removed)
    assert all(ref.startswith("envbuilder-reproduce:") for ref in removed)


def test_an_image_that_cannot_be_removed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ref: str) -> None:
        raise BuildError(f"{ref}: cannot be removed: timed out")

    engine = FakeEngine().serve(monkeypatch)
    monkeypatch.setattr(engine, "forget", fail)
    said: list[str] = []
    trials._forget("trial:1", PlainProgress(said.append))
    assert said == ["note: an image of these builds remains: trial:1: cannot be removed: timed out"]


def test_podman_is_refused_before_anything_is_built(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(artifact=Artifact(kind="image", ref="x"), builder="buildah", files=())
    monkeypatch.setattr(pipeline, "prepare", lambda *_, **__: SimpleNamespace(plan=plan))
    with pytest.raises(InvalidError, match="Buildah"):
        trials.run(Request(profile="x"), found, PlainProgress(lambda line: None))


def test_only_so_many_differences_are_listed(
    found: Settings, builds: tuple[list[Seen], list[Write]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "LISTED", 2)
    _, writes = builds
    for name in "abc":
        writes.append(lambda prefix, number, n=name: (prefix / n).write_text(str(number)))
    outcome = trials.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert [d.path for d in outcome.differences] == ["a", "b"]
    assert outcome.more == 1
