"""Of images and volumes, `clean` removes those that builds made."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from filelock import FileLock

from envbuilder.builds import records
from envbuilder.commands import clean, inventory
from envbuilder.containers.engine.interface import VOLUME_LABEL, StoredVolume
from envbuilder.core import console, settings
from envbuilder.core.errors import BuildError
from tests.support.cleaning import (
    Labelled,
    Report,
    image,
    named,
    ours,
    record,
    sha,
    sha_of,
    working,
)
from tests.support.command_line import Command

pytestmark = pytest.mark.usefixtures("fake")


@pytest.mark.parametrize("configured", [True, False])
def test_a_silent_engine_is_a_note_only_where_one_is_configured(
    own: settings.Settings, fake: Labelled, configured: bool, cleaned: Command
) -> None:
    fake.answers = False
    fake.configured = configured
    prefix = ours(own)
    shown = cleaned()
    assert not prefix.exists()
    assert shown.out == f"removed {prefix}\n"
    note = "images were not examined: no container engine answers: connection refused\n"
    assert shown.err.startswith(note if configured else "· measure")


def test_an_image_in_use_is_named(own: settings.Settings, fake: Labelled, cleaned: Command) -> None:
    fake.stuck.add("envbuilder/cpu:latest")
    prefix = ours(own)
    kept = record(own, "cpu")
    gone = record(own, "xpu")
    shown = cleaned("--json", code=1)
    assert "envbuilder/cpu:latest: cannot be removed: in use" in shown.err
    said = json.loads(shown.out)
    why = "envbuilder/cpu:latest: cannot be removed: in use"
    assert said["failed"] == [{"name": "envbuilder/cpu:latest", "reason": why}]
    assert said["removed"] == [str(prefix), "envbuilder/xpu:latest", str(gone)]
    assert kept.exists(), "or the image would never be known as ours again"


def test_an_image_that_a_container_runs_is_in_use(
    own: settings.Settings, fake: Labelled, report: Report
) -> None:
    path = record(own, "cpu")
    fake.running = [sha("cpu")]  # as podman writes it
    kept = {each["name"]: each["reason"] for each in report()["kept"]}
    assert kept["envbuilder/cpu:latest"] == inventory.IN_USE
    assert (fake.removed, path.exists()) == ([], True)


def test_images_of_others_stay_and_are_listed(
    own: settings.Settings, fake: Labelled, report: Report
) -> None:
    record(own, "cpu")
    fake.images.clear()
    mine = fake.add(image("cpu", "envbuilder/cpu:latest", "registry.lan/team/cpu:1"))
    fake.add(image("cpu", "thesis:1", content="FROM ours"))
    fake.add(image("cpu", content="FROM ours, without a name"))
    fake.add(image("xpu", named("xpu"), "envbuilder/xpu:latest"))
    said = report()
    assert said["removed"] == fake.removed == ["envbuilder/cpu:latest"]
    nameless = f"sha256:{sha('FROM ours, without a name')}"
    kept = {k["name"]: k["reason"] for k in said["kept"]}
    assert kept.keys() == {*mine.tags[1:], "thesis:1", nameless, *fake.images[sha_of("xpu")].tags}
    assert kept["envbuilder/xpu:latest"] == kept["thesis:1"] == inventory.ELSEWHERE
    # It is still there under the other name, and must be known as ours when that goes.
    assert (own.records_dir / sha("cpu")).exists()


def test_an_image_that_two_data_folders_built_goes_with_the_last(
    own: settings.Settings, fake: Labelled, report: Report
) -> None:
    """Podman spells their names in its own way."""
    other = msgspec.structs.replace(own, data_dir=own.data_dir / "other")
    claims = [f"localhost/{records.claim(sha('cpu'), each)}" for each in (own, other)]
    path = record(own, "cpu")
    (read,) = records.read(path)
    records.keep(path, msgspec.structs.replace(read, names=(named("cpu"), claims[0])))
    fake.images.clear()
    fake.add(image("cpu", named("cpu"), *claims))
    said = report()
    assert said["removed"] == fake.removed == claims[:1]
    assert {k["name"]: k["reason"] for k in said["kept"]} == {
        **dict.fromkeys((named("cpu"), claims[1]), inventory.SHARED)
    }
    assert path.exists()
    fake.add(image("cpu", named("cpu"), claims[0]))
    assert report()["removed"] == [named("cpu"), claims[0], str(path)]


@pytest.mark.parametrize("tags", [("docker.io/me/x:1",), ("me/x:1",), ("localhost/me/x:1",), ()])
def test_names_that_a_build_gave_go_however_an_engine_spells_them(
    own: settings.Settings, fake: Labelled, tags: tuple[str, ...], cleaned: Command
) -> None:
    """An image that has lost its names goes by its id."""
    path = record(own, "cpu")
    (read,) = records.read(path)
    records.keep(path, msgspec.structs.replace(read, names=(read.ref, "me/x:1")))
    fake.images.clear()
    fake.add(image("cpu", *tags))
    cleaned()
    assert fake.removed == [*(tags or [sha_of("cpu")])]
    assert not path.exists()


def test_images_that_a_killed_build_gave_to_the_engine_go(
    own: settings.Settings, fake: Labelled, cleaned: Command
) -> None:
    fake.images.clear()
    loaded = fake.add(image("cpu", "envbuilder/ahead:1", content="lower layers"))
    trial = working(own.cache_dir / "reproduce/tmp123")
    twice = fake.add(image("xpu", "envbuilder-reproduce:1"))
    elsewhere = msgspec.structs.replace(own, data_dir=trial / "second/data")
    path = record(elsewhere, "xpu")
    (read,) = records.read(path)
    records.keep(path, msgspec.structs.replace(read, names=twice.tags))
    part = records.LoadedImage(
        profile="cpu", fingerprint=sha("cpu"), ref=loaded.tags[0], ids=(loaded.id,)
    )
    noted = records.note(own.records_dir / sha("cpu"), part)
    work = working(own.cache_dir / f"build/cpu-{sha('cpu')[:12]}")
    with FileLock(f"{work}.lock"):
        cleaned("--profile", "xpu")
        assert fake.removed == list(twice.tags)
        assert trial.exists(), "it is no profile's"
        cleaned("--profile", "cpu")
        cleaned()
        assert loaded.tags[0] not in fake.removed
        assert not trial.exists()
    assert noted.exists()
    cleaned()
    assert fake.removed[-1:] == list(loaded.tags)
    assert not noted.parent.parent.exists()


def test_the_records_of_two_profiles_with_one_fingerprint_go_with_the_last_image(
    own: settings.Settings, fake: Labelled, cleaned: Command
) -> None:
    path = record(own, "cpu")
    (read,) = records.read(path)
    second = msgspec.structs.replace(
        read, profile="xpu", digest=sha_of("xpu"), ids=(sha_of("xpu"),)
    )
    records.keep(path, second)
    cleaned("--profile", "cpu")
    assert second in records.read(path)
    fake.images.pop("envbuilder/cpu:latest")
    cleaned()
    assert not path.exists()


def test_volumes_stay_unless_asked_for(fake: Labelled, cleaned: Command) -> None:
    shared, own = names = ("envbuilder-cache-7", "envbuilder-cache-7-0123456789ab")
    for name, uid in ((shared, os.getuid()), (own, os.getuid()), ("theirs", 4321)):
        labels = {VOLUME_LABEL: str(uid)}
        fake.stored_volumes[name] = StoredVolume(name=name, labels=labels)
    shown = cleaned()
    assert shown.out == "nothing to remove\n"
    assert f"(--volumes removes them)\n  {shared}\n  {own}\n" in shown.err
    assert "theirs" not in shown.err
    assert cleaned("--volumes", "--dry-run").out == f"would remove {shared}\nwould remove {own}\n"
    assert [*fake.stored_volumes] == [*names, "theirs"]
    assert cleaned("--volumes").out == f"removed {shared}\nremoved {own}\n"
    assert [*fake.stored_volumes] == ["theirs"]


def test_a_volume_in_use_is_named(
    fake: Labelled, monkeypatch: pytest.MonkeyPatch, cleaned: Command
) -> None:
    labels = {VOLUME_LABEL: str(os.getuid())}
    fake.stored_volumes["cache"] = StoredVolume(name="cache", labels=labels)

    def refuse(name: str) -> None:
        raise BuildError(f"{name}: cannot be removed: volume is in use")

    monkeypatch.setattr(fake, "remove_volume", refuse)
    assert "cache: cannot be removed: volume is in use" in cleaned("--volumes", code=1).err


def test_an_image_counts_once_with_its_last_name(own: settings.Settings, fake: Labelled) -> None:
    record(own, "cpu")
    record(own, "xpu")
    fake.images.clear()
    fake.add(image("cpu", named("cpu"), "envbuilder/cpu:latest"))
    fake.add(image("xpu", named("xpu"), "theirs:1"))
    fake.sizes = {sha_of("cpu"): 100, sha_of("xpu"): 20}
    with inventory.Inventory(own) as listed:
        listed.images(fake.labelled(), inventory.recorded_images(own), None)
    names = [item for item in listed.items if item.kind == inventory.IMAGES]
    sizes = clean.measured(names, fake, console.PlainProgress(lambda line: None))
    assert sizes == {named("cpu"): 0, "envbuilder/cpu:latest": 100, named("xpu"): 0}
    fake.sizes = {}
    sizes = clean.measured(names, fake, console.PlainProgress(lambda line: None))
    assert sizes["envbuilder/cpu:latest"] is None, "no engine reports it"
