"""Where a build gets its base image from, and how often it asks an engine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.builds import execute, pipeline, plan, project_layer
from envbuilder.builds.backends import docker
from envbuilder.builds.image import base as image_base
from envbuilder.builds.outputs import Output
from envbuilder.builds.project_layer import ProjectLayer
from envbuilder.builds.request import Locked, Planned, Request, advance
from envbuilder.containers.engine import images
from envbuilder.containers.engine.interface import BuildCommand, Image
from envbuilder.containers.oci import reference
from envbuilder.core.errors import BuildError, ToolError, VerifyError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Definition, Settings
from envbuilder.packages import fetch
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Target
from tests.support import make_wheels, project_layers
from tests.support.engines import BUILDAH, BUILDKIT, FakeEngine
from tests.support.images import BASE, Member, image
from tests.support.pipeline import a_build
from tests.support.progress import SILENT
from tests.support.recorded import replaced
from tests.support.shipped import shipped_lock, shipped_profile

LOCK = shipped_lock("cpu")
TARGET = next(t for t in LOCK.targets if t.python == "3.11" and t.base)
DIGEST = "sha256:" + "0" * 64
PROJECT = ProjectLayer(folder="/a", digest="0" * 64, files=())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine that exports each image as the same layout."""
    layout = SimpleNamespace(
        folder="/layout",
        manifest=lambda platform: SimpleNamespace(config=SimpleNamespace(digest=DIGEST)),
    )
    replaced(monkeypatch, images, "export", layout)
    replaced(monkeypatch, images, "remember", None)
    return FakeEngine("mine:1")


@pytest.mark.parametrize(("ref", "pulled"), [("mine:1", False), ("other:1", True)])
def test_a_base_in_the_engine_is_asked_for_once(
    engine: FakeEngine,
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
    ref: str,
    pulled: bool,
) -> None:
    requests = list[str]()
    look = engine.image
    monkeypatch.setattr(engine, "image", lambda name: requests.append(name) or look(name))
    chosen = image_base.find(TARGET, engine, Request(base_image=ref), found, scripts=False)
    assert (chosen.ref, chosen.identity, chosen.folder) == (ref, DIGEST, "/layout")
    assert engine.done == ([f"pull {ref} for {TARGET.platform}"] if pulled else [])
    assert requests == [ref] * (2 if pulled else 1)


def test_a_locked_base_that_the_engine_lacks_is_no_request_in_a_dry_run(
    engine: FakeEngine, found: Settings
) -> None:
    request = replace(Request(), dry_run=True)
    assert image_base.find(TARGET, engine, request, found, scripts=False).folder == ""
    assert engine.done == []


@pytest.mark.parametrize(
    ("folder", "environment", "expected"),
    [
        ("app", "default", "app-[0-9a-f]{6}"),
        ("My App_2", "default", "my-app-2-[0-9a-f]{6}"),
        ("app", "test", "app-test-[0-9a-f]{6}"),
        ("ä", "default", "project-[0-9a-f]{6}"),
        ("x" * 255, "default", "x{40}-[0-9a-f]{6}"),
        (b"\xff-a".decode(errors="surrogateescape"), "_b-", "a-b-[0-9a-f]{6}"),
    ],
)
def test_images_of_a_project_have_its_name(
    found: Settings, folder: str, environment: str, expected: str
) -> None:
    profile = shipped_profile("cpu")

    def names(above: str, environment: str = environment) -> tuple[str, ...]:
        settings = replace(
            found, project=Path(above, folder), environment=environment, definition=Definition()
        )
        build = a_build(found, profile, request=Request(tag="me/x:1"))
        return image_base.names(replace(build, settings=settings), TARGET, "ab" * 32, None)

    first, latest, tag = names("/a")
    assert re.fullmatch(rf"envbuilder/{expected}/cpu:py3\.11-(ab){{6}}", first)
    assert re.fullmatch(rf"envbuilder/{expected}/cpu:latest", latest)
    assert tag == "me/x:1"
    assert reference.parse(first).repository.startswith("envbuilder/")
    assert names("/a")[0] == first
    assert len({names("/b")[0], names("/a", "other")[0], first}) == 3


def test_images_of_no_project_have_the_name_of_their_profile(found: Settings) -> None:
    profile = shipped_profile("cpu")
    for project in (None, Path("/a/app")):  # its envbuilder.yaml only holds configuration
        build = a_build(replace(found, project=project), profile)
        names = image_base.names(build, TARGET, "ab" * 32, PROJECT)
        assert names == ("envbuilder/cpu:py3.11-abababababab", "envbuilder/cpu:project")


IMAGE = Image(id="sha256:" + "a" * 64, tags=("base:1",), labels={})


def parts(found: Settings, name: str, python: str, **request: Any) -> tuple[Locked, Target]:
    asked = a_build(found, name, request=Request(**request))
    return asked, profile_lock.select(asked.lock, "linux/amd64", python)


def on_layout(found: Settings, folder: Path, name: str, python: str) -> plan.Plan:
    """A plan of the builder `layers` on the small base image, which has Python 3.11.2."""
    layout = image(folder / "base").folder
    base = image_base.Base(ref=f"oci:{layout}", identity="sha256:" + "1" * 64, folder=str(layout))
    asked = parts(found, name, python, output=str(folder / "x.tar"))
    return docker.plan_layers(*asked, base, "linux/amd64", None)


def on_engine(
    found: Settings, build: BuildCommand = BUILDKIT, name: str = "cuda", python: str = "3.12"
) -> plan.Plan:
    """A plan of the engine's own builder on an image that the engine has."""
    return docker.plan(
        *parts(found, name, python), image_base.Base(ref="base:1", identity=IMAGE.id), build
    )


@pytest.fixture
def doings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was fetched and built; nothing really is."""
    done: list[str] = []
    # Room is asked for before the base's Python; how much this machine has is not the matter.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 50))
    monkeypatch.setattr(fetch, "fetch", lambda *args: done.append("fetch") or 0)
    monkeypatch.setattr(execute, "execute", lambda *args: done.append("execute") or 1.0)
    return done


def build(found: Settings, made: plan.Plan, name: str = "cuda", python: str = "3.12") -> None:
    _, target = parts(found, name, python)
    product = Output(target, made, found)
    pipeline.finish(advance(a_build(found, "cpu", progress=SILENT), Planned, product=product))


def test_the_projects_files_are_read_from_a_copy_if_one_is_named(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = project_layers.lay(tmp_path, {"a.py": b"1"})
    monkeypatch.setattr(project_layer, "planned", lambda settings: layer)
    assert image_base.project_files(Request(), found) is None
    assert image_base.project_files(Request(with_project=True), found) == layer
    request = Request(with_project=True, project_copy=Path("/copy"))
    copied = image_base.project_files(request, found)
    assert copied.folder == "/copy"
    assert copied.laid == "/copy"
    assert copied.files == layer.files


# --- in a layout


@pytest.mark.parametrize(
    ("name", "python"), [("cuda", "3.12"), ("cpu", "3.12"), ("cuda-legacy", "3.12")]
)
def test_a_layout_with_another_python_is_refused_before_the_fetch(
    name: str, python: str, found: Settings, doings: list[str], tmp_path: Path
) -> None:
    made = on_layout(found, tmp_path, name, python)
    with pytest.raises(
        BuildError, match=r"3\.12 is needed, but the base image has 3\.11\.2"
    ) as caught:
        build(found, made, name, python)
    assert caught.value.exit_code == 1
    assert "ENVBUILDER_BASE_IMAGE=REF" in caught.value.hint
    assert "--python-version 3.11" in caught.value.hint
    assert doings == []
    assert not found.store_dir.exists()


def test_a_python_is_offered_only_where_the_lock_has_images_of_it(
    found: Settings, doings: list[str], tmp_path: Path
) -> None:
    made = on_layout(found, tmp_path, "cpu", "3.12")
    check = made.base_check
    assert check.pythons == ("3.11", "3.12")
    other = replace(check, pythons=("3.12",))
    with pytest.raises(BuildError) as caught:
        build(found, replace(made, base_check=other), "cpu")
    assert "--python-version" not in caught.value.hint


def test_a_layout_with_the_python_is_built_on(
    found: Settings, doings: list[str], tmp_path: Path
) -> None:
    made = on_layout(found, tmp_path, "cpu", "3.11")
    with pytest.raises(BuildError, match="is missing, or another process changed it"):
        build(found, made, "cpu", "3.11")
    assert doings == ["fetch", "execute"]


def test_a_base_that_gets_its_python_from_the_lock_is_not_looked_at(found: Settings) -> None:
    """The image of `xpu` is made on a Debian without Python, which its packages bring."""
    assert on_engine(found, BUILDKIT, "xpu", "3.14").base_check is None


def test_nothing_is_looked_at_in_a_dry_run_or_where_the_base_is_made(found: Settings) -> None:
    base = image_base.Base(ref="base:1", identity="base:1", folder="")
    asked = parts(found, "cpu", "3.12", dry_run=True)
    made = docker.plan_layers(*asked, base, "linux/amd64", None)
    assert made.base_check is None
    image_base.require_python(made, found, SILENT)


# --- in an engine


def printing(output: str | Exception) -> FakeEngine:
    """An engine with the base, in which a container prints this."""
    engine = FakeEngine()
    engine.images["base:1"], engine.output = IMAGE, output
    return engine


@pytest.mark.parametrize(
    ("answer", "has"), [("3.11\n", "3.11"), ("3.13\n", "3.13"), ("none\n", "none on its PATH")]
)
@pytest.mark.parametrize("command", [BUILDKIT, BUILDAH])
def test_an_image_with_another_python_is_refused_before_the_fetch(
    answer: str,
    has: str,
    command: BuildCommand,
    found: Settings,
    doings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = printing(answer).serve(monkeypatch)
    made = on_engine(found, command)
    with pytest.raises(BuildError, match=f"3.12 is needed, but the base image has {has}") as caught:
        build(found, made)
    assert ("--python-version 3.11" in caught.value.hint) == (has == "3.11")
    assert "--python-version 3.13" not in caught.value.hint, "there is no base image for it"
    assert doings == []
    assert engine.done == ["run"]
    assert engine.containers[0].image == IMAGE.id
    assert engine.containers[0].user == "1000:1000", "as which the image will run"
    assert engine.containers[0].limits == engine.limits
    assert engine.closed


@pytest.mark.parametrize(
    "answer", ["3.12\n", "", "hello\n", "3.11 or so\n", VerifyError("no shell"), ToolError("gone")]
)
def test_the_right_python_or_no_answer_is_no_reason_to_refuse(
    answer: str | Exception,
    found: Settings,
    doings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printing(answer).serve(monkeypatch)
    with pytest.raises(BuildError, match="is missing, or another process changed it"):
        build(found, on_engine(found))
    assert doings == ["fetch", "execute"]


def test_an_image_that_the_engine_lacks_is_pulled_before_the_fetch(
    found: Settings, doings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = printing("3.11\n").serve(monkeypatch)
    engine.images.clear()
    with pytest.raises(BuildError, match=r"has 3\.11"):
        build(found, on_engine(found))
    assert engine.done == ["pull base:1 for linux/amd64", "run"]
    engine.images.clear()
    monkeypatch.setattr(engine, "pull", Mock(side_effect=BuildError("cannot be pulled")))
    with pytest.raises(BuildError, match="cannot be pulled"):
        build(found, on_engine(found))
    assert doings == []


# --- what was compiled elsewhere


STATUS = b"Package: other\nVersion: 9\n\nPackage: libc6\nStatus: x\nVersion: 2.36-9+deb12u4\n"


def compiled(found: Settings, folder: Path, needed: int, tag: str) -> profile_lock.File:
    """A wheel that was built here, whose library needs such a glibc."""
    library = b"x" * (1 << 20) + b"\0GLIBC_2.2.5\0GLIBC_2.%d\0" % needed
    files = {"x.cpython-311-x86_64-linux-gnu.so": library, "x.txt": b"\0GLIBC_2.99\0"}
    path = make_wheels.write(folder, "x", files, tag=tag)
    sha256 = file_sha256(path)
    Store.of(found).take(sha256, iter([path.read_bytes()]))
    return replace(
        TARGET.files[0], kind="wheel", name="x", file=path.name, sha256=sha256, source="built"
    )


@pytest.mark.parametrize(
    ("needed", "base", "has"),
    [
        (36, "layout", ""),
        (37, "layout", "has 2.36"),
        (37, "none", "has an unknown version"),
        (34, "engine", ""),
        (36, "engine", "has 2.35"),
        (36, "packages", ""),
        (37, "packages", "has 2.36"),
    ],
)
def test_what_was_compiled_against_a_newer_glibc_is_refused(
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    needed: int,
    base: str,
    has: str,
) -> None:
    file = compiled(found, tmp_path, needed, "cp311-cp311-linux_x86_64")
    target = replace(TARGET, files=())
    if base == "engine":
        printing("glibc 2.35\n").serve(monkeypatch)
        made = on_engine(found, BUILDKIT, "cpu", "3.11")
    else:
        made = on_layout(found, tmp_path, "cpu", "3.11")
    if base == "packages":
        deb = replace(TARGET.files[0], kind="deb", name="libc6", version="2.36-9+deb12u14")
        target = replace(target, files=(replace(deb, role="base"),))
    elif base != "engine":
        text = STATUS if base == "layout" else STATUS.replace(b"libc6", b"musl")
        status = Member(path="var/lib/dpkg/status", content=text)
        layout = image(tmp_path / "with", ([*(m for m in BASE if m.path != status.path), status],))
        assemble = next(s for s in made.steps if isinstance(s, plan.Assemble))
        made = replace(made, steps=(replace(assemble, base=str(layout.folder)),))
    made = replace(made, files=(file,))
    if not has:
        image_base.require_libc(made, target, found, SILENT)
        return
    with pytest.raises(BuildError, match=f"2.{needed}, but the base image {has}") as bad:
        image_base.require_libc(made, target, found, SILENT)
    assert "envbuilder render" in bad.value.hint
    pure = replace(file, file="x-1.0-py3-none-any.whl")
    image_base.require_libc(replace(made, files=(pure,)), target, found, SILENT)
