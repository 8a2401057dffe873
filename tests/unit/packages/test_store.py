"""The store, and a shared one below it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from envbuilder.core import files
from envbuilder.core.errors import BuildError, WrongHashError
from envbuilder.core.settings import Settings
from envbuilder.packages import store
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File


def file(content: bytes, name: str = "a-1.0-py3-none-any.whl") -> File:
    return File(
        kind="wheel",
        name="a",
        version="1.0",
        file=name,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        source="default",
        provenance="read",
        by="test",
    )


def test_wrong_bytes_never_enter_and_the_message_names_everything(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = file(b"right")
    with store.receiving(wanted.sha256) as part:
        part.write_bytes(b"wrong")
        with pytest.raises(WrongHashError) as caught:
            store.accept(part, wanted, "mirror.example")
        assert not part.exists()
    assert not store.has(wanted.sha256)
    for fact in (
        wanted.basename,
        "mirror.example",
        wanted.sha256,
        hashlib.sha256(b"wrong").hexdigest(),
    ):
        assert fact in caught.value.message


def test_link_uses_the_real_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    wanted = file(b"x", name="pool/main/a/a_1_all.deb")
    store.take(wanted.sha256, [b"x"])
    folder = tmp_path / "out"
    folder.mkdir()
    linked = store.link(wanted, folder)
    assert linked == folder / "a_1_all.deb"
    assert linked.read_bytes() == b"x"


def test_a_file_damaged_in_the_store_is_named_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = file(b"right")
    store.take(wanted.sha256, [b"right"])
    path = store.path(wanted.sha256)
    path.chmod(0o644)
    path.write_bytes(b"rotten")
    with pytest.raises(BuildError, match="damaged in the store"):
        store.link(wanted, tmp_path)
    assert not store.has(wanted.sha256)
    assert not (tmp_path / wanted.basename).exists()


def test_another_file_system_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    wanted = file(b"x")
    store.take(wanted.sha256, [b"x"])

    def cross_device(source: object, target: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(os, "link", cross_device)
    (tmp_path / "out").mkdir()
    assert store.link(wanted, tmp_path / "out").read_bytes() == b"x"


def test_every_version_finds_a_file_in_the_same_place(tmp_path: Path) -> None:
    wanted = file(b"right")
    Store(tmp_path).take(wanted.sha256, [b"ri", b"ght"])
    assert Store(tmp_path).path(wanted.sha256) == (
        tmp_path / "sha256" / wanted.sha256[:2] / wanted.sha256
    )
    assert Store(tmp_path).path(wanted.sha256).read_bytes() == b"right"


def test_only_folders_with_a_fixed_name_are_marked(tmp_path: Path) -> None:
    Store(tmp_path / "store").take(file(b"x").sha256, [b"x"])
    marked = {path.parent for path in tmp_path.rglob(files.MARKER)}
    assert marked == {tmp_path / "store", tmp_path / "store/sha256"}


def test_a_sound_file_has_the_right_bytes_and_a_damaged_one_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = file(b"right").sha256
    assert not store.sound(sha256)
    store.take(sha256, [b"right"])
    assert store.sound(sha256)
    store.path(sha256).chmod(0o644)
    store.path(sha256).write_bytes(b"rotten")
    assert not store.sound(sha256)
    assert store.path(sha256).read_bytes() == b"rotten"


@pytest.mark.parametrize("cleaned", [False, True])
def test_what_breaks_off_leaves_nothing_and_is_what_is_raised(
    tmp_path: Path, cleaned: bool
) -> None:
    """Also if the partial file is gone by then."""
    partial = tmp_path / "partial"

    def chunks() -> Iterator[bytes]:
        yield b"ri"
        if cleaned:
            (partial / file(b"right").sha256).unlink()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).take(file(b"right").sha256, chunks())
    assert [path for path in partial.iterdir() if path.suffix != ".lock"] == []
    assert not Store(tmp_path).has(file(b"right").sha256)


def test_what_is_derived_from_a_file_is_kept_until_the_file_is_another(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = file(b"right")
    store.take(wanted.sha256, [b"right"])
    made = []

    def make(path: Path) -> int:
        made.append(path)
        return len(path.read_bytes())

    for _ in range(2):
        assert store.derived(wanted.sha256, "size-1", int, make) == 5
    assert made == [store.path(wanted.sha256)]
    assert store.derived(wanted.sha256, "size-2", int, make) == 5
    assert len(made) == 2
    path = store.path(wanted.sha256)
    path.unlink()
    path.write_bytes(b"longer, damaged")
    assert store.derived(wanted.sha256, "size-1", int, make) == 15
    assert len([*tmp_path.glob("derived/*.json")]) == 3


WHEEL = b"a wheel" * 1000


def fill(root: Path, content: bytes = WHEEL, named: bytes | None = None) -> Path:
    """Put a file into the store below a cache, under its own hash or that of `named`."""
    store = Store(root / "store")
    store.take(file(content if named is None else named).sha256, [content])
    return store.path(file(content if named is None else named).sha256)


@pytest.fixture
def settings(found: Settings, tmp_path: Path) -> Settings:
    return replace(found, shared_store=tmp_path / "shared")


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    paths = {str(p): p.lstat() for p in root.rglob("*")}
    return {name: (s.st_mode, s.st_mtime_ns, s.st_nlink) for name, s in paths.items()}


def test_a_file_is_used_from_there_and_nothing_is_written_there(
    settings: Settings, tmp_path: Path
) -> None:
    fill(tmp_path / "shared")
    before = snapshot(tmp_path / "shared")
    ours = Store.of(settings)
    assert ours.has(file(WHEEL).sha256)
    assert ours.checked(file(WHEEL)).is_relative_to(tmp_path / "shared")
    (tmp_path / "work").mkdir()
    assert ours.link(file(WHEEL), tmp_path / "work").read_bytes() == WHEEL
    assert store.download_room([file(WHEEL)], settings).bytes == 0
    assert not (tmp_path / "cache").exists()
    ours.take(file(b"new").sha256, [b"new"])
    assert ours.path(file(b"new").sha256).is_relative_to(tmp_path / "cache")
    assert snapshot(tmp_path / "shared") == before, "linked, or written to"


def test_wrong_bytes_there_are_named_and_not_used(settings: Settings, tmp_path: Path) -> None:
    path = fill(tmp_path / "shared", b"b wheel" * 1000, named=WHEEL)
    store = Store.of(settings)
    work = tmp_path / "work"
    work.mkdir()
    for use in (lambda: store.checked(file(WHEEL)), lambda: store.link(file(WHEEL), work)):
        with pytest.raises(BuildError, match="damaged in the shared store") as caught:
            use()
        assert "ENVBUILDER_SHARED_STORE= (empty)" in caught.value.hint
    assert path.exists(), "it is somebody else's"
    assert list(work.iterdir()) == []


def test_the_copy_is_what_is_checked(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a shared store could change a file between a check and its use."""
    path = fill(tmp_path / "shared")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(files, "file_sha256", lambda path: file(WHEEL).sha256)
    path.chmod(0o644)
    path.write_bytes(b"changed")
    with pytest.raises(BuildError, match="damaged in the shared store"):
        Store.of(settings).link(file(WHEEL), work)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("place", ["shared", "cache"])
def test_what_is_no_plain_file_is_not_in_a_store(
    settings: Settings, tmp_path: Path, kind: str, place: str
) -> None:
    path = fill(tmp_path / place)
    elsewhere = path.rename(tmp_path / "elsewhere")
    {"link": lambda: path.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(path)}.get(
        kind, path.mkdir
    )()
    assert not Store.of(settings).has(file(WHEEL).sha256)
    assert not Store.of(settings).is_shared(file(WHEEL).sha256)


def test_a_file_that_cannot_be_read_there_is_fetched(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "shared")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    assert not Store.of(settings).has(file(WHEEL).sha256)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_a_planted_partial_file_is_not_written_through(tmp_path: Path, kind: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    theirs.chmod(0o640)
    store = Store(tmp_path / "store")
    files.ensure_folder(store.root / "partial")
    part = store.root / "partial" / file(WHEEL).sha256
    {"link": part.symlink_to, "hard link": part.hardlink_to, "pipe": lambda _: os.mkfifo(part)}[
        kind
    ](theirs)
    with store.receiving(file(WHEEL).sha256) as received:
        assert not os.path.lexists(received)
        received.write_bytes(WHEEL)
        store.accept(received, file(WHEEL), "test")
    assert theirs.read_bytes() == b"theirs"
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o640
    assert store.checked(file(WHEEL)).read_bytes() == WHEEL


def test_why_a_shared_store_cannot_be_used(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    assert store.objection(root).endswith(f"{root}: No such file or directory")
    root.mkdir()
    assert store.objection(root).endswith("does not contain store/")
    (root / "datasets").mkdir()
    assert store.objection(root) == ""
    fill(root)
    assert store.objection(root) == ""
    root.joinpath("file").touch()
    assert "Not a directory" in store.objection(root / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "store/sha256/ab"
    closed.mkdir(parents=True)
    closed.chmod(0o600)
    assert "Permission denied" in store.objection(tmp_path)


# --- room on the disks

TORCH_ROCM = 6_227_849_000


def sized(size: int | None, about: int | None = None, sha256: str = "0" * 64) -> File:
    return replace(file(b""), size=size, size_about=about, sha256=sha256)


def require_space(wheels: list[File], own: Settings) -> None:
    room = store.Room(folder=str(own.envs_dir), bytes=store.unpacked(wheels))
    store.require_space(wheels, [room], own)


@pytest.mark.parametrize(
    ("wheels", "free", "message"),
    [
        ([sized(1000)], 2800, ""),
        ([sized(1000)], 2799, "not enough space"),
        ([sized(TORCH_ROCM)], 10**10, r"17\.4 GB needed, 10\.0 GB free"),
        ([sized(None), sized(5, sha256="1" * 64)], 0, "and 1 files of unknown size"),
        ([sized(None)], 0, ""),
    ],
)
def test_downloads_and_what_is_unpacked_need_room_on_one_disk(
    found: Settings, monkeypatch: pytest.MonkeyPatch, wheels: list[File], free: int, message: str
) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    if not message:
        require_space(wheels, found)
        return
    with pytest.raises(BuildError, match=message) as error:
        require_space(wheels, found)
    assert "envbuilder clean" in error.value.hint
    assert "ENVBUILDER_CACHE_DIR" in error.value.hint


def test_two_disks_need_room_apart(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {str(found.envs_dir): 1, str(found.store_dir): 2}
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=1900))
    monkeypatch.setattr(store, "existing", lambda folder: folder)
    stat = lambda self: SimpleNamespace(st_dev=devices.get(str(self), 3))  # noqa: E731
    monkeypatch.setattr("pathlib.Path.stat", stat)
    rooms = [store.Room(folder=folder, bytes=1900) for folder in devices]
    store.require_rooms(rooms)
    devices[str(found.envs_dir)] = 2
    with pytest.raises(BuildError, match="not enough space"):
        store.require_rooms(rooms)


def test_what_the_store_has_needs_no_room(found: Settings) -> None:
    mine = Store.of(found)
    with mine.receiving(file(WHEEL).sha256) as part:
        part.write_bytes(WHEEL[:100])
    assert store.download_room([file(WHEEL)], found).bytes == len(WHEEL) - 100
    mine.take(file(WHEEL).sha256, [WHEEL])
    assert store.download_room([file(WHEEL)], found).bytes == 0
