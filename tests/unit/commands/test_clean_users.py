"""`clean` removes what this project alone uses; outside of one, what no project uses any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from envbuilder.builds import records
from envbuilder.commands import inventory
from envbuilder.core import settings
from tests.support.cleaning import (
    Labelled,
    Report,
    image,
    leftover,
    ours,
    record,
    sha,
    working,
)
from tests.support.command_line import Command

pytestmark = pytest.mark.usefixtures("fake")
Project = Callable[[str], Path]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project's folder by its name."""

    def made(name: str) -> Path:
        folder = tmp_path / "projects" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "envbuilder.yaml").touch()
        return folder

    return made


def use(own: settings.Settings, made: Path, *projects: Path) -> Path:
    """Let projects use an environment, or the images in a folder of records."""
    in_folder = made.parent == own.envs_dir
    artifact = SimpleNamespace(kind="venv" if in_folder else "image", ref=str(made))
    plan: Any = SimpleNamespace(artifact=artifact, fingerprint=made.name)
    for folder in projects:
        records.record_user(plan, msgspec.structs.replace(own, project=folder))
    return made


def kept(said: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in said["kept"]}


def test_in_a_project_what_it_alone_uses_goes(
    own: settings.Settings,
    fake: Labelled,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    report: Report,
) -> None:
    mine = project("mine")
    other = project("other")
    alone = use(own, ours(own, "cpu"), mine)
    shared = use(own, ours(own, "xpu"), mine, other)
    theirs = use(own, ours(own, "mps"), other)
    nobodys = ours(own, "cuda")
    left = leftover(own)
    images = [use(own, record(own, "cpu"), mine), use(own, record(own, "xpu"), other)]
    monkeypatch.chdir(mine)
    said = report()
    assert {str(alone), str(left), "envbuilder/cpu:latest"} < {*said["removed"]}
    assert said["users"] == {name: [str(mine)] for name in (str(alone), "envbuilder/cpu:latest")}
    assert fake.removed == ["envbuilder/cpu:latest"]
    reason = f"used by {other} (--all removes it)"
    assert kept(said)[str(shared)] == kept(said)[str(theirs)] == reason
    assert kept(said)["envbuilder/xpu:latest"] == reason
    assert kept(said)[str(nobodys)] == inventory.NOBODYS
    assert [path.exists() for path in images] == [False, True]
    assert sorted(p.name for p in own.envs_dir.glob(".*.users")) == sorted(
        records.users_of(path).name for path in (shared, theirs)
    )


def test_elsewhere_what_no_project_uses_any_more_goes(
    own: settings.Settings, fake: Labelled, project: Project, report: Report
) -> None:
    theirs = use(own, ours(own, "cpu"), project("other"), project("gone"))
    abandoned = use(own, ours(own, "xpu"), project("gone"))
    nobodys = ours(own, "cuda")
    images = [use(own, record(own, "cpu"), project("other")), record(own, "xpu")]
    assert str(abandoned) in kept(report())
    shutil.rmtree(project("gone"))
    said = report()
    assert {str(abandoned), str(nobodys)} & {*said["removed"]} == {str(abandoned)}
    assert not nobodys.exists(), "it went with the first"
    assert kept(said)[str(theirs)] == f"used by {project('other')} (--all removes it)"
    assert [path.exists() for path in images] == [True, False]
    assert fake.removed == ["envbuilder/xpu:latest"]


def test_all_of_all_projects_goes_only_with_all_and_names_them(
    own: settings.Settings, project: Project, cleaned: Command, envbuilder: Command
) -> None:
    shared = use(own, ours(own), project("a"), project("b"))
    use(own, record(own, "cpu"), project("a"))
    assert cleaned().out == "nothing to remove\n"
    said = envbuilder("clean", "--all", code=2).err
    for name in ("a", "b"):
        assert f"    used by {project(name)}\n" in said
    cleaned("--all")
    assert not shared.exists()
    assert not records.users_of(shared).exists()
    assert not (own.records_dir / sha("cpu")).exists()


def test_an_image_that_a_killed_build_left_goes_from_any_project(
    own: settings.Settings,
    fake: Labelled,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    cleaned: Command,
) -> None:
    fake.images.clear()
    twice = fake.add(image("xpu", "envbuilder/xpu:latest"))
    trial = working(own.cache_dir / "reproduce/tmp123")
    record(msgspec.structs.replace(own, data_dir=trial / "second/data"), "xpu")
    monkeypatch.chdir(project("mine"))
    cleaned()
    assert fake.removed == list(twice.tags)


@pytest.mark.parametrize("damage", ["", "\0", "x" * 5000])
def test_a_damaged_record_names_no_user(
    own: settings.Settings, damage: str, cleaned: Command
) -> None:
    prefix = ours(own)
    folder = records.users_of(prefix)
    folder.mkdir()
    (folder / sha("x")).write_text(damage)
    cleaned()
    assert not prefix.exists()
    assert folder.exists(), "envbuilder did not make it"


def test_many_users_are_counted(own: settings.Settings, project: Project, report: Report) -> None:
    prefix = use(own, ours(own), *map(project, "abcde"))
    assert kept(report())[str(prefix)].endswith("/c and 2 more (--all removes it)")


def test_a_project_is_recorded_once_and_nothing_else_is(own: settings.Settings) -> None:
    nothing: Any = SimpleNamespace(artifact=SimpleNamespace(kind="venv"), fingerprint="f")
    records.record_user(nothing, own)
    layout: Any = SimpleNamespace(artifact=SimpleNamespace(kind="layout"), fingerprint="f")
    records.record_user(layout, msgspec.structs.replace(own, project=own.data_dir))
    assert not own.data_dir.exists()
    prefix = use(own, ours(own), own.data_dir)
    (entry,) = records.users_of(prefix).glob("[!.]*")
    inode = entry.stat().st_ino
    use(own, prefix, own.data_dir)
    assert entry.stat().st_ino == inode


def test_a_project_that_cannot_be_looked_into_is_still_there(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = use(own, ours(own), own.cache_dir)
    stat = Path.stat
    folder = records.users_of(prefix)
    assert records.users_in(folder) == ()

    def closed(path: Path, **options: Any) -> Any:
        if path.name == settings.PROJECT_FILE:
            raise PermissionError
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", closed)
    assert records.users_in(folder) == (own.cache_dir,)
