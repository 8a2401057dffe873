"""Where a build gets its base image from, and how often it asks an engine."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from envbuilder.build.image import base
from envbuilder.build.project_layer import ProjectLayer
from envbuilder.build.request import Request
from envbuilder.containers.engine import images
from envbuilder.containers.oci import reference
from envbuilder.core import resources
from envbuilder.core.project_file import Definition
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from tests.support.engines import FakeEngine
from tests.support.pipeline import a_build

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

LOCK = profile_lock.load(resources.profiles_dir() / "locks" / "cpu.json")
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
    monkeypatch.setattr(images, "export", lambda *args: layout)
    monkeypatch.setattr(images, "remember", lambda *args: None)
    return FakeEngine("mine:1")


@pytest.mark.parametrize(("ref", "pulled"), [("mine:1", False), ("other:1", True)])
def test_a_base_in_the_engine_is_asked_for_once(
    engine: FakeEngine,
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
    ref: str,
    pulled: bool,
) -> None:
    requests, look = list[str](), engine.image
    monkeypatch.setattr(engine, "image", lambda name: requests.append(name) or look(name))
    chosen = base.find(TARGET, engine, Request(base_image=ref), found, scripts=False)
    assert (chosen.ref, chosen.identity, chosen.folder) == (ref, DIGEST, "/layout")
    assert engine.done == ([f"pull {ref} for {TARGET.platform}"] if pulled else [])
    assert requests == [ref] * (2 if pulled else 1)


def test_a_locked_base_that_the_engine_lacks_is_no_request_in_a_dry_run(
    engine: FakeEngine, found: Settings
) -> None:
    request = replace(Request(), dry_run=True)
    assert base.find(TARGET, engine, request, found, scripts=False).folder == ""
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
    profile = profiles.load("cpu", (resources.profiles_dir(),))

    def names(above: str, environment: str = environment) -> tuple[str, ...]:
        settings = replace(
            found, project=Path(above, folder), environment=environment, definition=Definition()
        )
        build = a_build(found, profile, request=Request(tag="me/x:1"))
        return base.names(replace(build, settings=settings), TARGET, "ab" * 32, None)

    first, latest, tag = names("/a")
    assert re.fullmatch(rf"envbuilder/{expected}/cpu:py3\.11-(ab){{6}}", first)
    assert re.fullmatch(rf"envbuilder/{expected}/cpu:latest", latest)
    assert tag == "me/x:1"
    assert reference.parse(first).repository.startswith("envbuilder/")
    assert names("/a")[0] == first
    assert len({names("/b")[0], names("/a", "other")[0], first}) == 3


def test_images_of_no_project_have_the_name_of_their_profile(found: Settings) -> None:
    profile = profiles.load("cpu", (resources.profiles_dir(),))
    for project in (None, Path("/a/app")):  # its envbuilder.yaml only holds configuration
        build = a_build(replace(found, project=project), profile)
        names = base.names(build, TARGET, "ab" * 32, PROJECT)
        assert names == ("envbuilder/cpu:py3.11-abababababab", "envbuilder/cpu:project")
