"""Two builds in different surroundings; afterwards everything is as it was."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.build import pipeline, project_layer, reproduce
from envbuilder.build.backends import integrity
from envbuilder.build.image import records
from envbuilder.build.plan import Artifact, BuildResult, CopyProject, MakeBase, Plan, project_of
from envbuilder.build.reproduce import Image, Key, Member, Prefix
from envbuilder.build.request import Build, Request
from envbuilder.commands import reproduce as command
from envbuilder.core import settings as core_settings
from envbuilder.core.archives import Tar
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File, Target
from tests.support.engines import FakeEngine
from tests.support.pipeline import a_build

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
EMPTY = Target(platform="linux/amd64", python="3.11", base=None, files=())


def product(plan: Any) -> Any:
    """A product with a plan, of which nothing exists."""
    return SimpleNamespace(plan=plan, target=EMPTY)


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
    with store.receiving(WHEEL.sha256) as part:
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
    before = Path.cwd(), time.tzname, {n: os.environ.get(n) for n in reproduce.SURROUNDINGS}
    outcome = reproduce.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert outcome.status == "equal"
    assert outcome.seconds == (1.5, 1.5)
    assert outcome.made_by == {"uv": "1"}
    (first, second), _ = builds
    assert all(s.request.rebuild for s in (first, second))
    assert first.store == found.store_dir
    assert second.content == first.content == CONTENT
    assert second.inode != first.inode, "a copy, not a link"
    assert (second.umask, second.zone) == (reproduce.UMASK, "XYZ")
    assert (first.bases, second.bases) == ({"given", "made"}, {"given"})
    for name in ("store", "envs", "umask", "zone", "here"):
        assert getattr(first, name) != getattr(second, name), name
    assert found.envs_dir not in {first.envs, second.envs}
    # Everything is as it was, and nothing of it stays.
    assert (
        Path.cwd(),
        time.tzname,
        {n: os.environ.get(n) for n in reproduce.SURROUNDINGS},
    ) == before
    assert first.umask == Seen(found, Request()).umask
    assert list((found.cache_dir / "reproduce").iterdir()) == []
    assert not found.data_dir.exists()


def test_what_differs_is_named_and_exits_1(builds: tuple[list[Seen], list[Write]]) -> None:
    _, writes = builds
    writes.append(lambda prefix, number: (prefix / "stamp").write_text(str(number)))
    done = CliRunner().invoke(command.command, ["--profile", "x", "--json"], standalone_mode=False)
    assert done.return_value == 1
    data = json.loads(done.stdout)
    assert (data["schema"], data["status"], data["diffoscope"]) == (1, "different", None)
    assert "manifest_digests" not in data, "unknown"
    assert len(set(data["digests"])) == 2
    digests = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"1", b"2")]
    assert data["differences"] == [
        {"path": "stamp", "layer": 0, "how": "content", "digests": digests}
    ]
    shown = CliRunner().invoke(command.command, ["--profile", "x"], standalone_mode=False)
    assert "x (venv, uv 1): different, built in 1.5 s and 1.5 s" in shown.stdout
    assert re.search(r"  stamp: content: sha256:\w{64} and sha256:\w{64}\n", shown.stdout)


def test_a_builder_is_for_images(builds: tuple[list[Seen], list[Write]]) -> None:
    with pytest.raises(InvalidError, match="--builder is for images"):
        CliRunner().invoke(
            command.command,
            ["--profile", "x", "--builder", "layers"],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_what_is_equal_exits_0(builds: tuple[list[Seen], list[Write]]) -> None:
    done = CliRunner().invoke(command.command, ["--profile", "x"], standalone_mode=False)
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
        reproduce.run(Request(profile="x"), found, PlainProgress(lambda line: None))
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
        reproduce.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert there < set(removed)
    assert all(ref.startswith("envbuilder-reproduce:") for ref in removed)


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
        reproduce.run(Request(profile="x"), found, PlainProgress(lambda line: None))


def test_only_so_many_differences_are_listed(
    found: Settings, builds: tuple[list[Seen], list[Write]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "LISTED", 2)
    _, writes = builds
    for name in "abc":
        writes.append(lambda prefix, number, n=name: (prefix / n).write_text(str(number)))
    outcome = reproduce.run(Request(profile="x"), found, PlainProgress(lambda line: None))
    assert [d.path for d in outcome.differences] == ["a", "b"]
    assert outcome.more == 1


PLAIN = ("etc/stamp", {"mode": 0o644, "mtime": 5}, b"one")
LINK = {"type": tarfile.SYMTYPE, "linkname": "there"}
XATTR = {"SCHILY.xattr.user.a": "b"}


def packed(*entries: tuple[str, dict[str, Any], bytes]) -> bytes:
    """A layer with these entries: name, attributes, content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, attributes, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for key, value in attributes.items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def layer(*entries: tuple[str, dict[str, Any], bytes]) -> dict[Key, Member]:
    data = packed(*entries)
    archive = Tar(io.BytesIO(data), len(data), BuildError)
    return {(1, entry.name): reproduce.member(entry, archive) for entry in archive}


def compared(first: dict[Key, Member], second: dict[Key, Member]) -> dict[str, str]:
    return {d.path: d.how for d in reproduce.between(first, second)}


@pytest.mark.parametrize(
    ("entry", "other", "how"),
    [
        (PLAIN, ("etc/stamp", PLAIN[1], b"two"), "content"),
        (PLAIN, ("etc/stamp", {**PLAIN[1], "mtime": 6}, b"one"), "metadata"),
        (PLAIN, ("etc/stamp", {**PLAIN[1], "mtime": 5.25}, b"one"), "metadata"),
        (PLAIN, ("etc/stamp", {**PLAIN[1], "mode": 0o600}, b"one"), "metadata"),
        (PLAIN, ("etc/stamp", {**PLAIN[1], "uid": 7}, b"one"), "metadata"),
        (PLAIN, ("etc/stamp", {**PLAIN[1], "pax_headers": XATTR}, b"one"), "metadata"),
        (PLAIN, ("etc/stamp", {"mode": 0o600, "mtime": 5}, b"two"), "content, metadata"),
        (("a", LINK, b""), ("a", {**LINK, "linkname": "elsewhere"}, b""), "content"),
        (("a", LINK, b""), ("a", {**LINK, "type": tarfile.LNKTYPE}, b""), "metadata"),
        (
            ("a", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b""),
            ("a", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}, b""),
            "content",
        ),
    ],
)
def test_a_member_that_differs_is_named(entry: Any, other: Any, how: str) -> None:
    first, second = layer(entry), layer(other)
    assert compared(first, layer(entry)) == {}
    (difference,) = reproduce.between(first, second)
    assert (difference.layer, difference.path, difference.how) == (1, entry[0], how)
    assert len(set(difference.digests)) == 2
    assert compared(first, {}) == {entry[0]: "only in the first"}
    assert compared({}, first) == {entry[0]: "only in the second"}


maps = st.dictionaries(
    st.tuples(st.integers(1, 2), st.text("abc/", min_size=1, max_size=4)),
    st.builds(Member, st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])),
)


@given(maps, maps)
def test_exactly_what_differs_is_listed(first: Any, second: Any) -> None:
    expected = sorted(p for p in first.keys() | second.keys() if first.get(p) != second.get(p))
    for one, other in ((first, second), (second, first)):
        listed = list(reproduce.between(one, other))
        assert [(d.layer, d.path) for d in listed] == expected
        assert all(d.how and d.digests[0] != d.digests[1] for d in listed)


def image(folder: Path, config: dict[str, Any], *layers: bytes) -> Image:
    """An image in a pretended layout; its layers are plain tars."""
    folder.mkdir()
    names = [hashlib.sha256(data).hexdigest() for data in layers]
    for name, data in zip(names, layers, strict=True):
        (folder / name).write_bytes(data)
    layout: Any = SimpleNamespace(
        manifest=lambda platform: SimpleNamespace(layers=names, config=SimpleNamespace(digest="c")),
        read_config=lambda manifest: {**config, "rootfs": {"diff_ids": names}},
        checked=lambda name: folder / name,
    )
    return Image(layout, "linux/amd64")


def listed(first: Any, second: Any, tmp_path: Path) -> dict[Key, str]:
    shown, more, _ = reproduce.listed(first, second, tmp_path / "differing")
    assert more == 0
    return {(d.layer, d.path): d.how for d in shown}


def test_images_are_compared_by_configuration_layer_and_member(tmp_path: Path) -> None:
    same, a, b = packed(("a", {}, b"same")), ("a", {}, b"1"), ("b", {}, b"")
    config = {"created": "2026-01-01", "config": {"Env": ["A=1"]}}
    other = {"created": "2026-01-02", "config": {"Env": ["A=1"]}, "empty": {}}
    first = image(tmp_path / "1", config, same, packed(a, b), packed(b))
    second = image(tmp_path / "2", other, same, packed(b, a), packed(b, PLAIN))
    assert listed(first, second, tmp_path) == {
        (0, "configuration: created"): "content",
        (0, "configuration: empty"): "only in the second",  # a key without a value, too
        (2, ""): "members are equal, their order or padding is not",
        (3, "etc/stamp"): "only in the second",
    }
    assert first.layers.keys() == second.layers.keys() == {2, 3}, "shared layers are not read"


def prefix(folder: Path, **files: str) -> Prefix:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "pyvenv.cfg").write_text(str(folder))
    return Prefix(folder)


def test_trees_are_compared_without_host_dependent_files(tmp_path: Path) -> None:
    first = prefix(tmp_path / "1", a="1", b="same", c="", d="")
    second = prefix(tmp_path / "2", a="2", b="same", e="")
    (tmp_path / "1" / "d").chmod(0o755)
    (tmp_path / "2" / "d").symlink_to("b")
    assert listed(first, second, tmp_path) == {
        (0, "a"): "content",
        (0, "c"): "only in the first",
        (0, "d"): "content, metadata",
        (0, "e"): "only in the second",
    }


def test_the_list_of_host_dependent_files_is_compared_itself(tmp_path: Path) -> None:
    sides = [prefix(tmp_path / name, a=name) for name in "12"]
    for name, content in (("1", "a\n"), ("2", "a\nb\n")):
        (tmp_path / name / integrity.PLACED).parent.mkdir(parents=True)
        (tmp_path / name / integrity.PLACED).write_text(content)
    assert listed(*sides, tmp_path) == {(0, integrity.PLACED): "content"}


def test_diffoscope_gets_the_files_whose_content_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = (("etc/time", {}, b"same"), ("../outside", {}, b"x"), ("/absolute", {}, b"x"))
    changed = [(name, {"mtime": 9}, b"y" if data == b"x" else data) for name, _, data in entries]
    sides = (
        image(tmp_path / "1", {"created": "1"}, packed(PLAIN, *entries)),
        image(tmp_path / "2", {"created": "2"}, packed((*PLAIN[:2], b"two"), *changed)),
    )
    monkeypatch.setattr(reproduce.process, "which", lambda program: None)
    assert reproduce.listed(*sides, tmp_path / "d")[2] is None
    monkeypatch.setattr(reproduce.process, "which", lambda program: program)

    def run(argv: list[str], **options: Any) -> Any:
        folder = tmp_path / "d"
        files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        assert files == {f"{s}/{p}" for s in ("first", "second") for p in (
            "etc/stamp", "configuration.json",
        )}  # fmt: skip
        assert (argv[-2:], options["cwd"]) == (["first", "second"], folder)
        return SimpleNamespace(returncode=1, stdout="-1\n+2\n", timed_out=False)

    monkeypatch.setattr(reproduce.process, "run", run)
    shown, _, text = reproduce.listed(*sides, tmp_path / "d")
    assert text == "-1\n+2\n"
    metadata = [d for d in shown if d.how == "metadata"]
    assert reproduce.diffoscope(sides, metadata, tmp_path / "e") is None


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
        product: Any = SimpleNamespace(plan=plan, target=EMPTY)
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
    outcome = run(bench)
    assert (outcome.status, outcome.built.changed) == ("equal", edited)
    is_same = not (changes or edited)
    assert (outcome.built.digest == outcome.digests[0]) == is_same
    command._print(outcome)
    shown = capsys.readouterr().out
    assert line in shown
    assert ("not the image that build made: envbuilder/x:1, config" in shown) != is_same


def test_only_images_of_the_same_project_and_builder_are_compared(bench: Bench) -> None:
    built(bench, builder="buildkit")
    assert run(bench).built is None
    built(bench)
    assert run(bench).built is not None
    bench.settings = replace(bench.settings, environment="test")
    assert run(bench).built is None
