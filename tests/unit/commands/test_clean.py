"""`clean` removes what carries our mark, follows no link, and can say so beforehand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from envbuilder.builds import attestations
from envbuilder.builds.backends import in_use
from envbuilder.builds.backends.integrity import MARKER
from envbuilder.commands import inventory
from envbuilder.core import files, settings
from tests.support.cleaning import (
    DIGEST,
    DOWNLOADED,
    OURS,
    Labelled,
    Report,
    folder,
    leftover,
    ours,
    record,
    sha_of,
    store,
    working,
)
from tests.support.command_line import Command
from tests.support.folders import names_in

pytestmark = pytest.mark.usefixtures("fake")


def test_only_what_carries_our_mark_is_removed(
    own: settings.Settings, fake: Labelled, cleaned: Command
) -> None:
    removed = [ours(own, "cpu"), ours(own, "xpu"), leftover(own)]
    removed.append(working(own.cache_dir / "build/cpu-0123456789ab"))
    removed.append(working(own.cache_dir / "reproduce/tmp123"))
    removed += [record(own, "cpu"), record(own, "xpu")]
    kept = [
        folder(own.records_dir / "no-record"),
        folder(own.envs_dir / "no-marker"),
        folder(own.envs_dir / "other-maker", {"made_by": "conda"}),
        folder(own.envs_dir / "a-list", ["envbuilder"]),
        folder(own.envs_dir / "damaged", '{"made_by": "envbuilder"'),
        folder(own.envs_dir / "binary", "\0"),
        folder(own.envs_dir / ".hidden", {"made_by": "envbuilder"}),
        folder(own.envs_dir / "not-hidden.partial"),
        folder(own.cache_dir / "store/sha256"),
        folder(own.data_dir / "other", {"made_by": "envbuilder"}),
        folder(own.cache_dir / "build/theirs"),
        folder(own.cache_dir / "build/xpu-0123456789ab"),
        folder(own.cache_dir / "reproduce/theirs"),
        folder(own.envs_dir / ".theirs.partial"),
    ]
    (own.envs_dir / "a-file").write_text("x")
    (own.envs_dir / ".x.partial").write_text("a file, too")
    shown = cleaned().out
    assert [p for p in removed if p.exists()] == []
    assert [p for p in kept if not (p / "bin/python").exists()] == []
    assert (own.envs_dir / "a-file").exists()
    assert (own.envs_dir / ".x.partial").exists()
    assert sorted(shown.splitlines()) == sorted(f"removed {x}" for x in [*removed, *OURS])
    assert fake.removed == list(OURS)


def test_no_link_is_followed(own: settings.Settings, tmp_path: Path, cleaned: Command) -> None:
    marker = {"made_by": "envbuilder", "profile": "cpu"}
    elsewhere = [folder(tmp_path / name, marker) for name in ("env", "work", "store", "build")]
    own.envs_dir.mkdir(parents=True)
    (own.cache_dir / "build").mkdir(parents=True)
    links = [
        own.envs_dir / "cpu-py3.11-0123456789ab",
        own.envs_dir / ".cpu-py3.11-0123456789ab.partial",
        own.cache_dir / "store",
        own.cache_dir / "build/cpu-0123456789ab",
    ]
    for link, target in zip(links, elsewhere, strict=True):
        link.symlink_to(target)
    inside = folder(ours(own, "xpu") / "data")
    (inside / "elsewhere").symlink_to(elsewhere[0])
    cleaned("--store")
    for p in elsewhere:
        assert (p / "bin/python").exists()
    assert all(link.is_symlink() for link in links)
    assert not inside.exists()


def test_a_running_build_is_left_alone(own: settings.Settings, cleaned: Command) -> None:
    """Also the environment that it makes anew."""
    killed = working(own.envs_dir / ".xpu-py3.11-0123456789ab.partial")
    running = [leftover(own), working(own.cache_dir / "build/cpu-0123456789ab"), ours(own)]
    with FileLock(f"{running[0]}.lock"), FileLock(f"{running[1]}.lock"):
        cleaned()
        assert all(path.exists() for path in running)
        assert not killed.exists()
    cleaned()
    for path in running:
        assert not path.exists()


def test_an_environment_in_which_a_command_runs_is_in_use(
    own: settings.Settings, report: Report
) -> None:
    prefix = ours(own)
    held = in_use.hold(prefix)
    assert {"name": str(prefix), "reason": inventory.IN_USE} in report()["kept"]
    assert prefix.exists()
    del held
    assert report()["removed"] == [str(prefix)]


def test_a_dry_run_says_exactly_what_a_run_removes_and_its_bytes(
    own: settings.Settings, fake: Labelled, report: Report
) -> None:
    fake.sizes = {sha_of("cpu"): 123}
    record(own, "cpu")
    prefix = ours(own)
    leftover(own)
    planned = report("--dry-run")
    done = report()
    assert planned == {**done, "dry_run": True}
    assert (done["schema"], done["dry_run"]) == (1, False)
    assert list(done["sizes"]) == done["removed"]
    assert (len(done["removed"]), done["sizes"]["envbuilder/cpu:latest"]) == (4, 123)
    assert done["sizes"][str(prefix)] > 0
    assert done["bytes"] == sum(done["sizes"].values())


def test_one_profile(own: settings.Settings, fake: Labelled, cleaned: Command) -> None:
    cpu = ours(own, "cpu")
    xpu = ours(own, "xpu")
    rest = leftover(own)
    record(own, "cpu")
    record(own, "xpu")
    for option, subject in (("--store", "downloads"), ("--volumes", "volumes")):
        assert (
            f"{option} cannot be combined with --profile: {subject} belong to no profile"
            in cleaned("--profile", "cpu", option, code=2).err
        )
    assert cleaned("--profile", "nope").out == "nothing to remove\n"
    assert cpu.exists()
    cleaned("--profile", "cpu")
    assert not cpu.exists()
    assert xpu.exists()
    assert rest.exists()
    assert fake.removed == ["envbuilder/cpu:latest"]


def test_an_environments_documents_go_with_it_and_nobody_elses(
    own: settings.Settings, cleaned: Command
) -> None:
    gone = folder(own.envs_dir / "cpu-py3.11-aa", {"made_by": "envbuilder", "profile": "cpu"})
    kept = folder(own.envs_dir / "xpu-py3.11-bb", {"made_by": "envbuilder", "profile": "xpu"})
    for prefix in (gone, kept):
        for suffix in attestations.SUFFIXES.values():
            Path(f"{prefix}{suffix}").write_text("{}")
    theirs = own.envs_dir / "cpu-py3.11-aa.notes.json"
    theirs.write_text("mine")
    cleaned("--profile", "cpu")
    left = names_in(own.envs_dir)
    assert left == {
        *(kept.name + suffix for suffix in ("", *attestations.SUFFIXES.values())),
        theirs.name,
    }


def test_the_store_only_when_asked(own: settings.Settings, cleaned: Command) -> None:
    made = [store(own, name, *contents) for name, contents in DOWNLOADED.items()]
    strange = folder(own.cache_dir / "somebody's")
    assert cleaned().out == "nothing to remove\n"
    for p in made:
        assert p.exists()
    assert cleaned("--store").out.count("removed ") == len(DOWNLOADED)
    assert not any(p.exists() for p in made)
    assert strange.exists()


def test_what_cannot_be_removed_is_named(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, cleaned: Command
) -> None:
    def refuse(path: str, dir_fd: int) -> None:
        raise PermissionError(13, "Permission denied", path)

    prefix = ours(own)
    left = own.envs_dir / "cpu-py3.11-0123456789ab.provenance.json"
    left.write_text("{}")
    monkeypatch.setattr(shutil, "rmtree", refuse)
    shown = cleaned(code=1)
    assert f"{prefix}: cannot be removed: Permission denied" in shown.err
    assert shown.out == f"removed {left}\n", "the rest is done"


# --- what is not ours


def test_nothing_below_a_link_is_removed(
    own: settings.Settings, report: Report, cleaned: Command
) -> None:
    """A link to another installation's cache: everything in there has its marks."""
    other = own.cache_dir.with_name("other")
    made = msgspec.structs.replace(own, cache_dir=other / "cache", data_dir=other / "data")
    mine = [working(made.cache_dir / "build/cpu-0123456789ab"), ours(made)]
    mine += [store(made, name, *contents) for name, contents in DOWNLOADED.items()]
    for link, target in ((own.cache_dir, made.cache_dir), (own.data_dir, made.data_dir)):
        link.symlink_to(target)
    said = cleaned("--store")
    for p in mine:
        assert p.exists()
    assert said.out == "nothing to remove\n"
    assert f"  {own.cache_dir}\n" in said.err

    for link in (own.cache_dir, own.data_dir):
        link.unlink()
        link.mkdir()
    names = ("build", *DOWNLOADED)
    for name in names:
        (own.cache_dir / name).symlink_to(made.cache_dir / name)
    own.envs_dir.symlink_to(made.envs_dir)
    kept = {Path(k["name"]).name for k in report("--store")["kept"]}
    assert all(p.exists() for p in mine)
    assert kept == {*names, "envs", *(tag.rpartition("/")[2] for tag in OURS)}


def test_a_link_above_the_folders_is_no_obstacle(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cleaned: Command
) -> None:
    """~/.cache may be a link to a larger disk."""
    (tmp_path / "link").symlink_to(own.cache_dir.parent)
    own.cache_dir.parent.mkdir(exist_ok=True)
    for name, path in (("CACHE", own.cache_dir), ("DATA", own.data_dir)):
        monkeypatch.setenv(f"ENVBUILDER_{name}_DIR", str(tmp_path / "link" / path.name))
    gone = [ours(own), store(own, "store", *DOWNLOADED["store"])]
    cleaned("--store")
    for p in gone:
        assert not p.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_holds_files_of_another_user_stays(own: settings.Settings, report: Report) -> None:
    made = store(own, "store", *DOWNLOADED["store"], "partial/planted")
    os.chown(made / "partial/planted", 4711, -1)
    kept = report("--store")["kept"]
    assert {"name": str(made), "reason": inventory.FOREIGN} in kept
    assert (made / "sha256").exists()


def test_folders_that_were_there_before_us_stay(own: settings.Settings, cleaned: Command) -> None:
    """It says which, and what to do."""
    for name, contents in DOWNLOADED.items():
        (own.cache_dir / name).mkdir(parents=True)
        store(own, name, *contents)
    before = set(own.cache_dir.rglob("*"))
    said = cleaned("--store")
    assert set(own.cache_dir.rglob("*")) == before
    assert said.out == "nothing to remove\n"
    assert all(f"  {own.cache_dir / name}\n" in said.err for name in DOWNLOADED)
    assert "rm -r" in said.err


@pytest.mark.parametrize("forged", ["a link", "a folder", "other text"])
def test_a_marker_that_is_not_ours_says_nothing(
    own: settings.Settings, tmp_path: Path, forged: str, cleaned: Command
) -> None:
    environment = folder(own.envs_dir / "thesis")
    (environment / MARKER).symlink_to(ours(own) / MARKER)
    real = files.ensure_folder(tmp_path / "real") / files.MARKER
    theirs = folder(own.cache_dir / "build/cpu-0123456789ab")
    marker = theirs / files.MARKER
    if forged == "a link":
        marker.symlink_to(real)
    elif forged == "a folder":
        marker.mkdir()
    else:
        marker.write_text("mine")
    cleaned()
    assert theirs.exists()
    assert environment.exists()


def test_downloads_stay_while_a_build_or_a_download_is_running(
    own: settings.Settings, cleaned: Command
) -> None:
    made = [store(own, name, *contents) for name, contents in DOWNLOADED.items()]
    building = working(own.cache_dir / "build/cpu-0123456789ab")
    with FileLock(f"{building}.lock"):
        assert "in use by another envbuilder" in cleaned("--store").err
        for p in made:
            assert p.exists()
    with FileLock(made[0] / f"partial/{DIGEST}.lock"):
        cleaned("--store")
        assert [p for p in made if p.exists()] == [made[0]]
    cleaned("--store")
    assert not made[0].exists()


def test_a_folder_that_cannot_be_read_stays_and_is_named(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    def refuse(*about: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    unreadable = store(own, "build")
    monkeypatch.setattr(Path, "iterdir", refuse)
    kept = report("--store")["kept"]
    assert {"name": str(unreadable), "reason": "cannot be read: Permission denied"} in kept


def test_a_folder_that_holds_a_mount_stays(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, cleaned: Command
) -> None:
    left = working(own.cache_dir / "build/cpu-0123456789ab")
    (left / "home").mkdir()
    table = f"41 36 98:0 / {left}/home rw - ext4 a rw\n"
    monkeypatch.setattr(files, "mount_table", lambda: table)
    assert f"{left}: cannot be removed: a file system is mounted at" in cleaned(code=1).err
    assert left.exists()
