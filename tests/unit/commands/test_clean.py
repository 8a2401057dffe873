"""`clean` removes what carries our mark, follows no link, and can say so beforehand."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from filelock import FileLock

from envbuilder.build import attestations
from envbuilder.build.backends.integrity import MARKER
from envbuilder.build.image import records
from envbuilder.commands import clean, inventory
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.interface import VOLUME_LABEL, Image, StoredVolume
from envbuilder.core import console, files, settings
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.store import Store
from tests.support import command_line, reports
from tests.support.engines import FakeEngine

Shown = pytest.CaptureFixture[str]
OURS = {"envbuilder/cpu:latest": "cpu", "envbuilder/xpu:latest": "xpu"}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def image(profile: str, *tags: str, content: str = "") -> Image:
    """An image with our labels: the recorded one of the profile unless its content differs."""
    labels = {"io.envbuilder.fingerprint": sha(profile), "io.envbuilder.profile": profile}
    return Image(id=f"sha256:{sha(content or profile)}", tags=tags, labels=labels)


class Labelled(FakeEngine):
    """Labelled images, two of them ours; `answers` False: there is no engine."""

    def __init__(self) -> None:
        super().__init__()
        self.images = {tag: image(profile, tag) for tag, profile in OURS.items()}
        self.answers, self.configured = True, True
        self.removed: list[str] = []
        self.stuck: set[str] = set()
        self.sizes: dict[str, int] = {}

    def shares(self) -> dict[str, int]:
        return self.sizes

    def add(self, made: Image, last_step: str = "") -> Image:
        self.images[made.id] = made
        self.steps[made.id] = last_step
        return made

    def connect(self) -> Labelled:
        if not self.answers:
            raise ToolError("no container engine answers: connection refused")
        return self

    def remove(self, ref: str, only: str = "") -> None:
        assert any(i.id == only and ref in {*i.tags, i.id} for i in self.images.values())
        if ref in self.stuck:
            raise BuildError(f"{ref}: cannot be removed: in use", "Stop the containers")
        self.removed.append(ref)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Labelled:
    made = Labelled()
    monkeypatch.setattr(connection, "connect", made.connect)
    monkeypatch.setattr(connection, "configured", lambda: made.configured)
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def own() -> settings.Settings:
    """The folders that the command itself will see."""
    return load_settings()


run = functools.partial(command_line.run, "clean")


def printed(capsys: Shown, *arguments: str) -> str:
    """What the command prints, which must come to a good end."""
    assert run(*arguments) == 0
    return capsys.readouterr().out


def report(capsys: Shown, *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def folder(path: Path, marker: Any = None) -> Path:
    """A folder with a file; `marker` is what its marker says (text as it is)."""
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").write_text("x")
    if marker is not None:
        text = marker if isinstance(marker, str) else json.dumps(marker)
        (path / MARKER).write_text(text)
    return path


def working(path: Path) -> Path:
    """A working folder, as a killed build leaves it."""
    folder(path)
    files.mark_folder(path)
    return path


def store(own: settings.Settings, name: str, *names: str) -> Path:
    """A folder of the cache that envbuilder made, with these files."""
    above = files.ensure_folder(own.cache_dir / name)
    for file in names:
        (above / file).parent.mkdir(parents=True, exist_ok=True)
        (above / file).write_text("x")
    return above


def ours(own: settings.Settings, profile: str = "cpu") -> Path:
    marker = {"made_by": "envbuilder", "profile": profile}
    return folder(own.envs_dir / f"{profile}-py3.11-0123456789ab", marker)


def record(own: settings.Settings, profile: str) -> Path:
    fingerprint = sha(profile)
    path = own.records_dir / fingerprint
    made = records.ImageRecord(
        profile=profile,
        fingerprint=fingerprint,
        ref=f"envbuilder/{profile}:py3.11-{fingerprint[:12]}",
        digest=f"sha256:{fingerprint}",
        ids=(f"sha256:{fingerprint}",),
        builder="buildkit",
        made_by={},
    )
    records.keep(path, made)
    return path


def leftover(own: settings.Settings) -> Path:
    return working(own.envs_dir / ".cpu-py3.11-0123456789ab.partial")


def test_only_what_carries_our_mark_is_removed(
    own: settings.Settings, fake: Labelled, capsys: Shown
) -> None:
    removed = [ours(own, "cpu"), ours(own, "xpu"), leftover(own)]
    removed.append(working(own.cache_dir / "build" / "cpu-0123456789ab"))
    removed.append(working(own.cache_dir / "reproduce" / "tmp123"))
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
        folder(own.cache_dir / "store" / "sha256"),
        folder(own.reports_dir),
        folder(own.data_dir / "other", {"made_by": "envbuilder"}),
        folder(own.cache_dir / "build" / "theirs"),
        folder(own.cache_dir / "build" / "xpu-0123456789ab"),
        folder(own.cache_dir / "reproduce" / "theirs"),
        folder(own.envs_dir / ".theirs.partial"),
    ]
    (own.envs_dir / "a-file").write_text("x")
    (own.envs_dir / ".x.partial").write_text("a file, too")
    assert run() == 0
    assert [p for p in removed if p.exists()] == []
    assert [p for p in kept if not (p / "bin" / "python").exists()] == []
    assert (own.envs_dir / "a-file").exists()
    assert (own.envs_dir / ".x.partial").exists()
    shown = capsys.readouterr().out
    assert sorted(shown.splitlines()) == sorted(f"removed {x}" for x in [*removed, *OURS])
    assert fake.removed == list(OURS)


def test_no_link_is_followed(own: settings.Settings, tmp_path: Path, capsys: Shown) -> None:
    marker = {"made_by": "envbuilder", "profile": "cpu"}
    elsewhere = [folder(tmp_path / name, marker) for name in ("env", "work", "store", "build")]
    own.envs_dir.mkdir(parents=True)
    (own.cache_dir / "build").mkdir(parents=True)
    links = [
        own.envs_dir / "cpu-py3.11-0123456789ab",
        own.envs_dir / ".cpu-py3.11-0123456789ab.partial",
        own.cache_dir / "store",
        own.cache_dir / "build" / "cpu-0123456789ab",
    ]
    for link, target in zip(links, elsewhere, strict=True):
        link.symlink_to(target)
    inside = folder(ours(own, "xpu") / "data")
    (inside / "elsewhere").symlink_to(elsewhere[0])
    assert run("--store") == 0
    assert all((p / "bin" / "python").exists() for p in elsewhere)
    assert all(link.is_symlink() for link in links)
    assert not inside.exists()


def test_a_running_build_is_left_alone(own: settings.Settings) -> None:
    """Also the environment that it makes anew."""
    killed = working(own.envs_dir / ".xpu-py3.11-0123456789ab.partial")
    running = [leftover(own), working(own.cache_dir / "build" / "cpu-0123456789ab"), ours(own)]
    with FileLock(f"{running[0]}.lock"), FileLock(f"{running[1]}.lock"):
        assert run() == 0
        assert all(path.exists() for path in running)
        assert not killed.exists()
    assert run() == 0
    assert not any(path.exists() for path in running)


def test_a_dry_run_says_exactly_what_a_run_removes_and_its_bytes(
    own: settings.Settings, fake: Labelled, capsys: Shown
) -> None:
    fake.sizes = {sha_of("cpu"): 123}
    record(own, "cpu")
    prefix = ours(own)
    leftover(own)
    planned = report(capsys, "--dry-run")
    done = report(capsys)
    assert planned == {**done, "dry_run": True}
    assert (done["schema"], done["dry_run"]) == (1, False)
    assert list(done["sizes"]) == done["removed"]
    assert (len(done["removed"]), done["sizes"]["envbuilder/cpu:latest"]) == (4, 123)
    assert done["sizes"][str(prefix)] > 0
    assert done["bytes"] == sum(done["sizes"].values())


def test_one_profile(own: settings.Settings, fake: Labelled, capsys: Shown) -> None:
    cpu, xpu, rest = ours(own, "cpu"), ours(own, "xpu"), leftover(own)
    record(own, "cpu")
    record(own, "xpu")
    for option, subject in (("--store", "downloads"), ("--volumes", "they")):
        assert run("--profile", "cpu", option) == 2
        assert f"{option}: {subject} belong to no profile" in capsys.readouterr().err
    assert printed(capsys, "--profile", "nope") == "nothing to remove\n"
    assert cpu.exists()
    assert run("--profile", "cpu") == 0
    assert not cpu.exists()
    assert xpu.exists()
    assert rest.exists()
    assert fake.removed == ["envbuilder/cpu:latest"]


def test_an_environments_documents_go_with_it_and_nobody_elses(own: settings.Settings) -> None:
    gone = folder(own.envs_dir / "cpu-py3.11-aa", {"made_by": "envbuilder", "profile": "cpu"})
    kept = folder(own.envs_dir / "xpu-py3.11-bb", {"made_by": "envbuilder", "profile": "xpu"})
    for prefix in (gone, kept):
        for suffix in attestations.SUFFIXES.values():
            Path(f"{prefix}{suffix}").write_text("{}")
    theirs = own.envs_dir / "cpu-py3.11-aa.notes.json"
    theirs.write_text("mine")
    assert run("--profile", "cpu") == 0
    left = {p.name for p in own.envs_dir.iterdir()}
    assert left == {
        *(kept.name + suffix for suffix in ("", *attestations.SUFFIXES.values())),
        theirs.name,
    }


DIGEST = f"{7:064}"
DOWNLOADED = {
    "store": (f"sha256/00/{DIGEST}", f"partial/{DIGEST}", f"partial/{DIGEST}.lock"),
    "bases": (
        f"{DIGEST}-linux-amd64/oci-layout",
        f"{DIGEST}.lock",
        f".debian-{DIGEST}.ab/x",
        f"{DIGEST}.signature.json",
    ),
    "layers": ("oci-layout", "index.json", f"blobs/sha256/{DIGEST}", f"made/{DIGEST}.json"),
    "uploads": (f"{7:032}.json", f"{7:032}.lock", f"{7:032}.repository"),
    "datasets": ("mnist/.lock", "mnist/t10k-labels-idx1-ubyte", "mnist/.part-abc/x"),
    "locate": ("linux-amd64-3.11-pytorch-cpu.txt",),
    "uv-resolve": ("CACHEDIR.TAG", "simple-v1/x/y.msgpack"),
    "logs": (
        "cpu-0123456789ab.log",
        "20260101T000000Z-cpu-venv-payload.log",
        "20260101T000000Z-cpu-venv-devices.log",
        "20260101T000000Z-1a2b.4711-node-1-payload.log",  # of `fleet join`
        "4711-node-1-payload.log",
    ),
}


def test_the_store_only_when_asked(own: settings.Settings, capsys: Shown) -> None:
    made = [store(own, name, *contents) for name, contents in DOWNLOADED.items()]
    strange = folder(own.cache_dir / "somebody's")
    report = folder(own.reports_dir)
    assert run() == 0
    assert all(p.exists() for p in made)
    assert run("--store") == 0
    assert not any(p.exists() for p in made)
    assert strange.exists()
    assert report.exists()
    assert capsys.readouterr().out.count("removed ") == len(DOWNLOADED)


def test_nothing_there(own: settings.Settings, fake: Labelled, capsys: Shown) -> None:
    fake.images = {}
    assert printed(capsys) == "nothing to remove\n"
    said = report(capsys)
    assert said == {
        "schema": 1,
        "removed": [],
        "dry_run": False,
        "bytes": 0,
        "sizes": {},
        "kept": [],
        "failed": [],
    }
    assert not own.envs_dir.exists()
    assert not own.cache_dir.exists()


@pytest.mark.parametrize("configured", [True, False])
def test_a_silent_engine_is_a_note_only_where_one_is_configured(
    own: settings.Settings, fake: Labelled, capsys: Shown, configured: bool
) -> None:
    fake.answers, fake.configured = False, configured
    prefix = ours(own)
    assert run() == 0
    assert not prefix.exists()
    shown = capsys.readouterr()
    assert shown.out == f"removed {prefix}\n"
    note = "images were not examined: no container engine answers: connection refused\n"
    assert shown.err.startswith(note if configured else "· measure")


def test_what_cannot_be_removed_is_named(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    def refuse(path: str, dir_fd: int) -> None:
        raise PermissionError(13, "Permission denied", path)

    prefix, left = ours(own), own.envs_dir / "cpu-py3.11-0123456789ab.provenance.json"
    left.write_text("{}")
    monkeypatch.setattr(shutil, "rmtree", refuse)
    assert run() == 1
    shown = capsys.readouterr()
    assert f"{prefix}: cannot be removed: Permission denied" in shown.err
    assert shown.out == f"removed {left}\n", "the rest is done"


def test_an_image_in_use_is_named(own: settings.Settings, fake: Labelled, capsys: Shown) -> None:
    fake.stuck.add("envbuilder/cpu:latest")
    prefix, kept, gone = ours(own), record(own, "cpu"), record(own, "xpu")
    assert run("--json") == 1
    shown = capsys.readouterr()
    assert "envbuilder/cpu:latest: cannot be removed: in use" in shown.err
    said = json.loads(shown.out)
    assert said["failed"] == [{"name": "envbuilder/cpu:latest", "reason": "in use"}]
    assert said["removed"] == [str(prefix), "envbuilder/xpu:latest", str(gone)]
    assert kept.exists(), "or the image would never be known as ours again"


# --- what is not ours


def test_nothing_below_a_link_is_removed(own: settings.Settings, capsys: Shown) -> None:
    """A link to another installation's cache: everything in there has its marks."""
    other = own.cache_dir.with_name("other")
    made = msgspec.structs.replace(own, cache_dir=other / "cache", data_dir=other / "data")
    mine = [working(made.cache_dir / "build" / "cpu-0123456789ab"), ours(made)]
    mine += [store(made, name, *contents) for name, contents in DOWNLOADED.items()]
    for link, target in ((own.cache_dir, made.cache_dir), (own.data_dir, made.data_dir)):
        link.symlink_to(target)
    assert run("--store") == 0
    assert all(p.exists() for p in mine)
    said = capsys.readouterr()
    assert said.out == "nothing to remove\n"
    assert f"  {own.cache_dir}\n" in said.err
    assert "ENVBUILDER_CACHE_DIR" in said.err

    for link in (own.cache_dir, own.data_dir):
        link.unlink()
        link.mkdir()
    names = ("build", *DOWNLOADED)
    for name in names:
        (own.cache_dir / name).symlink_to(made.cache_dir / name)
    own.envs_dir.symlink_to(made.envs_dir)
    assert run("--store", "--json") == 0
    assert all(p.exists() for p in mine)
    kept = {Path(k["name"]).name for k in json.loads(capsys.readouterr().out)["kept"]}
    assert kept == {*names, "envs", *(tag.rpartition("/")[2] for tag in OURS)}


def test_a_link_above_the_folders_is_no_obstacle(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """~/.cache may be a link to a larger disk."""
    (tmp_path / "link").symlink_to(own.cache_dir.parent)
    own.cache_dir.parent.mkdir(exist_ok=True)
    for name, path in (("CACHE", own.cache_dir), ("DATA", own.data_dir)):
        monkeypatch.setenv(f"ENVBUILDER_{name}_DIR", str(tmp_path / "link" / path.name))
    gone = [ours(own), store(own, "store", *DOWNLOADED["store"])]
    assert run("--store") == 0
    assert not any(p.exists() for p in gone)


def test_files_of_others_in_folders_of_ours_stay(own: settings.Settings, capsys: Shown) -> None:
    for name, contents in DOWNLOADED.items():
        store(own, name, *contents)
    theirs = [
        own.cache_dir / "store" / "sha256" / "00" / "README",
        own.cache_dir / "store" / "mine" / f"{3:064}",
        own.cache_dir / "logs" / "app.log",
        own.cache_dir / "datasets" / "imagenet" / "train.tar",
        own.cache_dir / "layers" / "blobs" / "sha256" / "notes",
        own.cache_dir / "bases" / "my-base" / "oci-layout",
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    (own.cache_dir / "uploads" / "empty").mkdir()
    assert run("--store", "--json") == 0
    left = {p for p in own.cache_dir.rglob("*") if p.is_file() and p.name != files.MARKER}
    assert left == set(theirs)
    assert (own.cache_dir / "uploads" / "empty").is_dir()
    kept = {k["name"] for k in json.loads(capsys.readouterr().out)["kept"]}
    assert {str(theirs[2]), str(theirs[3].parent), str(theirs[5].parent)} <= kept


def test_folders_that_were_there_before_us_stay(own: settings.Settings, capsys: Shown) -> None:
    """Also those of earlier versions, which set no marker: it says which, and what to do."""
    for name, contents in DOWNLOADED.items():
        (own.cache_dir / name).mkdir(parents=True)
        store(own, name, *contents)
    before = set(own.cache_dir.rglob("*"))
    assert run("--store") == 0
    assert set(own.cache_dir.rglob("*")) == before
    said = capsys.readouterr()
    assert said.out == "nothing to remove\n"
    assert all(f"  {own.cache_dir / name}\n" in said.err for name in DOWNLOADED)
    assert "rm -r" in said.err


def test_what_we_made_in_a_folder_of_others_goes(own: settings.Settings) -> None:
    theirs = own.cache_dir / "store"
    theirs.mkdir(parents=True)
    (theirs / "wine").write_text("theirs")
    Store(theirs).take(DIGEST, [b"ours"])
    assert Store(theirs).has(DIGEST)
    assert run("--store") == 0
    assert not (theirs / "sha256").exists()
    assert (theirs / "wine").exists()


@pytest.mark.parametrize("forged", ["a link", "a folder", "other text"])
def test_a_marker_that_is_not_ours_says_nothing(
    own: settings.Settings, tmp_path: Path, forged: str
) -> None:
    environment = folder(own.envs_dir / "thesis")
    (environment / MARKER).symlink_to(ours(own) / MARKER)
    real = files.ensure_folder(tmp_path / "real") / files.MARKER
    theirs = folder(own.cache_dir / "build" / "cpu-0123456789ab")
    marker = theirs / files.MARKER
    if forged == "a link":
        marker.symlink_to(real)
    elif forged == "a folder":
        marker.mkdir()
    else:
        marker.write_text("mine")
    assert run() == 0
    assert theirs.exists()
    assert environment.exists()


def test_downloads_stay_while_a_build_or_a_download_is_running(
    own: settings.Settings, capsys: Shown
) -> None:
    made = [store(own, name, *contents) for name, contents in DOWNLOADED.items()]
    building = working(own.cache_dir / "build" / "cpu-0123456789ab")
    with FileLock(f"{building}.lock"):
        assert run("--store") == 0
        assert all(p.exists() for p in made)
    assert "in use by another envbuilder" in capsys.readouterr().err
    with FileLock(made[0] / "partial" / f"{DIGEST}.lock"):
        assert run("--store") == 0
        assert [p for p in made if p.exists()] == [made[0]]
    assert run("--store") == 0
    assert not made[0].exists()


def test_reports_of_earlier_versions_go_only_if_they_are_reports(own: settings.Settings) -> None:
    name = "000001-20260101T000000Z-cpu-venv.json"
    own.reports_dir.mkdir(parents=True)
    (own.reports_dir / name).write_text("my own notes")
    assert run("--reports") == 0
    assert (own.reports_dir / name).exists()
    reports.written(own.reports_dir / name)
    assert run("--reports") == 0
    assert not (own.reports_dir / name).exists()


def test_reports_go_only_when_asked_and_of_one_profile(own: settings.Settings) -> None:
    files.ensure_folder(own.reports_dir)
    for name in ("000001-20260101T000000Z-cpu", "000002-20260101T000000Z-xpu", "mine"):
        reports.written(own.reports_dir / f"{name}-venv.json")
    for options, left in (
        ((), 3),
        (("--store",), 3),
        (("--reports", "--dry-run"), 3),
        (("--reports", "--profile", "cpu"), 2),
        (("--reports",), 1),
    ):
        assert run(*options) == 0
        assert len([*own.reports_dir.glob("*.json")]) == left
    assert (own.reports_dir / "mine-venv.json").exists()


def test_a_folder_that_cannot_be_read_stays_and_is_named(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    def refuse(*about: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    unreadable = [store(own, "logs"), store(own, "build"), own.reports_dir]
    own.reports_dir.mkdir(parents=True)
    monkeypatch.setattr(inventory, "_look", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)
    kept = report(capsys, "--store", "--reports")["kept"]
    reason = "cannot be read: Permission denied"
    assert all({"name": str(path), "reason": reason} in kept for path in unreadable)


# --- images


def test_images_of_others_stay_and_are_listed(
    own: settings.Settings, fake: Labelled, capsys: Shown
) -> None:
    record(own, "cpu")
    fake.images.clear()
    mine = fake.add(image("cpu", "envbuilder/cpu:latest", "registry.lan/team/cpu:1"))
    fake.add(image("cpu", "thesis:1", content="FROM ours"), "RUN pip install pandas")
    fake.add(image("cpu", content="FROM ours, without a name"), "RUN pip install pandas")
    fake.add(image("xpu", named("xpu"), "envbuilder/xpu:latest"), "envbuilder: payload")
    said = report(capsys)
    assert said["removed"] == fake.removed == ["envbuilder/cpu:latest"]
    nameless = f"sha256:{sha('FROM ours, without a name')}"
    kept = {k["name"]: k["reason"] for k in said["kept"]}
    assert kept.keys() == {*mine.tags[1:], "thesis:1", nameless, *fake.images[sha_of("xpu")].tags}
    assert "--all-images" in kept["envbuilder/xpu:latest"]
    assert "--all-images" not in kept["thesis:1"]
    # It is still there under the other name, and must be known as ours when that goes.
    assert (own.records_dir / sha("cpu")).exists()


def named(profile: str) -> str:
    return f"envbuilder/{profile}:py3.11-{sha(profile)[:12]}"


def sha_of(profile: str) -> str:
    return f"sha256:{sha(profile)}"


@pytest.mark.parametrize("last", ["envbuilder: payload", 'CMD ["python"]'])
def test_all_images_are_those_that_builds_made(
    own: settings.Settings, fake: Labelled, capsys: Shown, last: str
) -> None:
    fake.images.clear()
    fake.add(image("xpu", named("xpu"), "envbuilder/xpu:latest", "team/xpu:1"), last)
    fake.add(image("cpu", "thesis:1", content="FROM ours"), last)
    fake.add(image("mps", named("mps"), content="a commit with our name"), "bash")
    fake.add(image("tpu", "envbuilder/tpu:latest", content="FROM ours, as latest"), last)
    fake.add(image("ipu", f"other/ipu:py3.11-{sha('ipu')[:12]}"), last)
    project = [f"envbuilder/app-012abc/{n}" for n in (named("gpu")[11:], "gpu:project")]
    fake.add(image("gpu", *project), last)
    fake.add(image("npu", f"envbuilder/app/npu:py3.11-{sha('npu')[:12]}"), last)
    assert run("--all-images", "--dry-run") == 0
    assert run("--all-images") == 0
    assert sorted(fake.removed) == sorted([named("xpu"), "envbuilder/xpu:latest", *project])
    lines = capsys.readouterr().out.splitlines()
    assert [x.removeprefix("would ") for x in lines[:4]] == [
        x.replace("removed", "remove") for x in lines[4:]
    ]


@pytest.mark.parametrize("tags", [("docker.io/me/x:1",), ("me/x:1",), ("localhost/me/x:1",), ()])
def test_names_that_a_build_gave_go_however_an_engine_spells_them(
    own: settings.Settings, fake: Labelled, tags: tuple[str, ...]
) -> None:
    """An image that has lost its names goes by its id."""
    path = record(own, "cpu")
    (read,) = records.read(path)
    records.keep(path, msgspec.structs.replace(read, names=(read.ref, "me/x:1")))
    fake.images.clear()
    fake.add(image("cpu", *tags))
    assert run() == 0
    assert fake.removed == [*(tags or [sha_of("cpu")])]
    assert not path.exists()


def test_images_that_a_killed_build_gave_to_the_engine_go(
    own: settings.Settings, fake: Labelled
) -> None:
    fake.images.clear()
    loaded = fake.add(image("cpu", "envbuilder/ahead:1", content="lower layers"))
    trial = working(own.cache_dir / "reproduce" / "tmp123")
    twice = fake.add(image("xpu", "envbuilder-reproduce:1"))
    elsewhere = msgspec.structs.replace(own, data_dir=trial / "second" / "data")
    path = record(elsewhere, "xpu")
    (read,) = records.read(path)
    records.keep(path, msgspec.structs.replace(read, names=twice.tags))
    part = records.LoadedImage(
        profile="cpu", fingerprint=sha("cpu"), ref=loaded.tags[0], ids=(loaded.id,)
    )
    noted = records.note(own.records_dir / sha("cpu"), part)
    work = working(own.cache_dir / "build" / f"cpu-{sha('cpu')[:12]}")
    with FileLock(f"{work}.lock"):
        assert run("--profile", "xpu") == 0
        assert fake.removed == list(twice.tags)
        assert trial.exists(), "it is no profile's"
        assert run("--profile", "cpu") == 0
        assert run() == 0
        assert loaded.tags[0] not in fake.removed
        assert not trial.exists()
    assert noted.exists()
    assert run() == 0
    assert fake.removed[-1:] == list(loaded.tags)
    assert not noted.parent.parent.exists()


def test_two_profiles_with_one_fingerprint_keep_their_own_records(
    own: settings.Settings, fake: Labelled
) -> None:
    path = record(own, "cpu")
    (read,) = records.read(path)
    second = msgspec.structs.replace(
        read, profile="xpu", digest=sha_of("xpu"), ids=(sha_of("xpu"),)
    )
    records.keep(path, second)
    assert run("--profile", "cpu") == 0
    assert records.read(path) == (second,)
    fake.images.pop("envbuilder/cpu:latest")
    assert run() == 0
    assert not path.exists()


def test_files_of_others_beside_a_record_stay(own: settings.Settings, fake: Labelled) -> None:
    path = record(own, "cpu")
    digest = sha("cpu")
    for suffix in (".sbom.cdx.json", ".files.json"):
        (path / f"{digest}{suffix}").write_text("{}")
    (path / "notes.txt").write_text("theirs")
    assert run() == 0
    assert [p.name for p in path.iterdir()] == ["notes.txt"]


def test_what_a_dry_run_says_is_what_a_run_removes_whatever_is_there(
    own: settings.Settings, fake: Labelled, capsys: Shown, tmp_path: Path
) -> None:
    """A folder full of surprises: the tree tells what really went."""
    for name, contents in DOWNLOADED.items():
        store(own, name, *contents)
        (own.cache_dir / name / "theirs.txt").write_text("theirs")
    (own.cache_dir / "logs" / "link.log").symlink_to(tmp_path)
    (own.cache_dir / "store" / "partial" / f"{5:064}").symlink_to(tmp_path)
    for prefix in (ours(own, "cpu"), ours(own, "xpu")):
        (prefix / "data").symlink_to(tmp_path)
    folder(own.envs_dir / "theirs")
    working(own.cache_dir / "build" / "cpu-0123456789ab")
    folder(own.cache_dir / "build" / "cuda-0123456789ab")
    record(own, "cpu")
    (record(own, "xpu") / "notes").write_text("theirs")
    fake.add(image("cpu", "thesis:1", content="FROM ours"))
    before = listing(own)
    planned = printed(capsys, "--store", "--reports", "--dry-run").splitlines()
    assert listing(own) == before
    done = printed(capsys, "--store", "--reports").splitlines()
    assert [x.replace("would remove", "removed") for x in planned] == done
    names = {x.removeprefix("removed ") for x in done}
    gone = before - listing(own)
    assert {p for p in gone if not {str(a) for a in (p, *p.parents)} & names} == set()
    assert {n for n in names if n not in OURS} <= {str(p) for p in gone}
    assert names & OURS.keys() == set(fake.removed)
    assert printed(capsys, "--store", "--reports") == "nothing to remove\n"


def test_a_folder_that_holds_a_mount_stays_and_a_dry_run_says_so(
    own: settings.Settings, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = working(own.cache_dir / "build" / "cpu-0123456789ab")
    (left / "home").mkdir()
    table = f"41 36 98:0 / {left}/home rw - ext4 a rw\n"
    monkeypatch.setattr(files, "mount_table", lambda: table)
    for arguments in (("--dry-run",), ()):
        assert run(*arguments) == 0
        shown = capsys.readouterr()
        assert shown.out == "nothing to remove\n"
        assert f"somethingismountedat{left}/home" in "".join(shown.err.split())
    assert left.exists()


def listing(own: settings.Settings) -> set[Path]:
    return {p for above in (own.cache_dir, own.data_dir) for p in above.rglob("*")}


# ---- on a terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody sits at a terminal; the texts are the questions, each answered by the next one."""
    monkeypatch.setattr(clean, "_is_terminal", lambda: True)
    questions = list[str]()

    def confirm(question: str, *, err: bool) -> bool:
        assert err
        questions.append(question)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    return questions


def test_a_terminal_is_asked_once_after_the_sizes(
    own: settings.Settings, terminal: list[str], capsys: Shown
) -> None:
    made = [ours(own), leftover(own), record(own, "cpu")]
    assert run() == 0
    assert terminal == ["Remove all of it?"]
    assert not any(p.exists() for p in made)
    assert "at least" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--yes", "--json", "--dry-run"])
def test_nobody_is_asked(
    own: settings.Settings, fake: Labelled, terminal: list[str], option: str
) -> None:
    prefix = ours(own)
    assert run(option) == 0
    assert terminal == []
    assert prefix.exists() == (option == "--dry-run")
    shutil.rmtree(prefix, ignore_errors=True)
    fake.images = {}
    assert run() == 0
    assert terminal == [], "nothing is there"


def test_no_removes_nothing(
    own: settings.Settings,
    fake: Labelled,
    terminal: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Shown,
) -> None:
    prefix = ours(own)
    record(own, "cpu")
    monkeypatch.setattr(click, "confirm", lambda question, **options: False)
    assert run() == 0
    assert prefix.exists()
    assert fake.removed == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "nothing was removed" in shown.err


def test_what_changed_during_the_question_stays(
    own: settings.Settings, terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that began meanwhile, and one that ended, are not what was shown."""
    shown, begun = ours(own, "cpu"), ours(own, "xpu")
    lock = FileLock(begun.with_name(f".{begun.name}.partial.lock"))

    def confirm(question: str, *, err: bool) -> bool:
        lock.acquire()
        ours(own, "zendnn")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    with lock:
        lock.release()
        assert run() == 0
        assert begun.exists()
    assert not shown.exists()
    assert (own.envs_dir / "zendnn-py3.11-0123456789ab").exists()


# --- volumes


def test_volumes_stay_unless_asked_for(fake: Labelled, capsys: Shown) -> None:
    shared, own = names = ("envbuilder-cache-7", "envbuilder-cache-7-0123456789ab")
    for name, uid in ((shared, os.getuid()), (own, os.getuid()), ("theirs", 4321)):
        labels = {VOLUME_LABEL: str(uid)}
        fake.stored_volumes[name] = StoredVolume(name=name, labels=labels)
    assert run() == 0
    shown = capsys.readouterr()
    assert shown.out == "nothing to remove\n"
    assert f"(--volumes removes them)\n  {shared}\n  {own}\n" in shown.err
    assert "theirs" not in shown.err
    assert (
        printed(capsys, "--volumes", "--dry-run") == f"would remove {shared}\nwould remove {own}\n"
    )
    assert [*fake.stored_volumes] == [*names, "theirs"]
    assert printed(capsys, "--volumes") == f"removed {shared}\nremoved {own}\n"
    assert [*fake.stored_volumes] == ["theirs"]


def test_a_volume_in_use_is_named(
    fake: Labelled, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    labels = {VOLUME_LABEL: str(os.getuid())}
    fake.stored_volumes["cache"] = StoredVolume(name="cache", labels=labels)

    def refuse(name: str) -> None:
        raise BuildError(f"{name}: cannot be removed: volume is in use")

    monkeypatch.setattr(fake, "remove_volume", refuse)
    assert run("--volumes") == 1
    assert "cache: cannot be removed: volume is in use" in capsys.readouterr().err


# --- sizes


def file(path: Path, size: int = 100_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def blocks(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def freed(*paths: Path) -> list[int | None]:
    """The bytes that the removal of these paths frees, in this order."""
    items = [
        inventory.Item(name=str(p), kind=inventory.WORKING, row="", root=p.parent) for p in paths
    ]
    return [*clean.measured(items, None, console.PlainProgress(lambda line: None)).values()]


def test_a_folder_frees_what_is_on_the_disk(tmp_path: Path) -> None:
    large, small = file(tmp_path / "env" / "a" / "large"), file(tmp_path / "env" / "small", 1)
    (sparse := tmp_path / "env" / "sparse").touch()
    with sparse.open("r+b") as stream:
        stream.truncate(1 << 30)
    outside = file(tmp_path / "outside")
    (link := tmp_path / "env" / "link").symlink_to(outside)
    folders = (tmp_path / "env", tmp_path / "env" / "a")
    assert freed(tmp_path / "env") == [blocks(large, small, sparse, link, *folders)]
    assert blocks(sparse) < 1 << 20
    assert freed(tmp_path / "gone") == [0]


def test_a_file_with_two_names_is_freed_with_the_last(tmp_path: Path) -> None:
    first, other = file(tmp_path / "first"), tmp_path / "other"
    other.hardlink_to(first)
    assert freed(first, other) == [0, blocks(first)]
    assert freed(other) == [0], "the first one stays"
    file(tmp_path / "env" / "third").unlink()
    (tmp_path / "env" / "third").hardlink_to(first)
    paths = (tmp_path / "env", first, other)
    assert freed(*paths) == [blocks(tmp_path / "env"), 0, blocks(first)]


def test_what_belongs_together_is_one_row(own: settings.Settings, fake: Labelled) -> None:
    prefix = ours(own)
    Path(f"{prefix}.sbom.cdx.json").write_text("{}")
    work = leftover(own)
    (store(own, "layers", "index.json") / "theirs").write_text("theirs")
    store(own, "layers", f"blobs/sha256/{DIGEST}")
    record(own, "cpu")
    fake.images.clear()
    fake.add(image("cpu", named("cpu"), "envbuilder/cpu:latest"))
    with inventory.Inventory(own) as listed:
        leftovers = listed.leftovers()
        listed.environments(None)
        listed.downloads()
        recorded = inventory.recorded_images(own)
        listed.images(fake.labelled(), recorded, None, None)
    rows = [(item.kind, item.row) for item in (*leftovers, *listed.items)]
    assert list(dict.fromkeys(rows)) == [
        (inventory.WORKING, work.name),
        (inventory.ENVIRONMENTS, prefix.name),
        (inventory.DOWNLOADS, "layers"),
        (inventory.IMAGES, f"{named('cpu')}, envbuilder/cpu:latest"),
        (inventory.RECORDS, inventory.RECORDS),
    ]
    assert len(rows) == 8


def test_an_image_counts_once_with_its_last_name(own: settings.Settings, fake: Labelled) -> None:
    record(own, "cpu")
    record(own, "xpu")
    fake.images.clear()
    fake.add(image("cpu", named("cpu"), "envbuilder/cpu:latest"))
    fake.add(image("xpu", named("xpu"), "theirs:1"))
    fake.sizes = {sha_of("cpu"): 100, sha_of("xpu"): 20}
    with inventory.Inventory(own) as listed:
        listed.images(fake.labelled(), inventory.recorded_images(own), None, None)
    names = [item for item in listed.items if item.kind == inventory.IMAGES]
    sizes = clean.measured(names, fake, console.PlainProgress(lambda line: None))
    assert sizes == {named("cpu"): 0, "envbuilder/cpu:latest": 100, named("xpu"): 0}
    fake.sizes = {}
    sizes = clean.measured(names, fake, console.PlainProgress(lambda line: None))
    assert sizes["envbuilder/cpu:latest"] is None, "no engine reports it"


def lines(*entries: tuple[str, str, int | None]) -> list[str]:
    """The table of what has these kinds, rows and sizes."""
    items = [
        inventory.Item(name=str(n), kind=kind, row=row) for n, (kind, row, _) in enumerate(entries)
    ]
    sizes = {str(n): size for n, (_, _, size) in enumerate(entries)}
    return list(clean.table(items, sizes))


def test_the_table_fits_80_columns_and_shows_the_largest_first() -> None:
    shown = lines(
        (inventory.ENVIRONMENTS, "small", 4096),
        (inventory.ENVIRONMENTS, "n" * 200, 1_310_000_000),
        (inventory.IMAGES, "envbuilder/cpu:latest", 310_000_000),
    )
    assert all(len(line) <= 80 for line in shown)
    firsts = ["envir", "nnnnn", "small", "image", "envbu", "total"]
    assert [line.split()[0][:5] for line in shown] == firsts
    assert shown[-1].endswith("1.62 GB")
    assert all(line.endswith("B") for line in shown if line.startswith("  "))


def test_more_may_be_freed_than_is_known() -> None:
    """Sizes that no engine reports, and layers that only removed images share."""
    _, row, total = lines((inventory.IMAGES, "envbuilder/cpu:latest", None))
    assert row.endswith(" ?")
    assert total.startswith("at least")
    several = lines(*((inventory.IMAGES, name, 5) for name in ("a", "b")))
    assert several[-1].startswith("at least")


def test_what_has_no_parts_is_one_line_and_many_rows_are_summed_up() -> None:
    reports, total = lines((inventory.REPORTS, inventory.REPORTS, 5000))
    assert reports.split() == ["verification", "reports", "5.00", "kB"]
    assert len(reports) == len(total)
    many = lines(*((inventory.WORKING, f"row {n}", n * 1000) for n in range(1, 31)))
    assert len(many) == 1 + 20 + 1 + 1
    assert many[-2].split() == ["and", "10", "more", "55.0", "kB"]
    assert many[-1].split() == ["total", "465", "kB"]
