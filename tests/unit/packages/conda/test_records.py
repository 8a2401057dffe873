"""Records of conda packages: py-rattler's, and those of a prefix."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.packages.conda import prefixes
from envbuilder.packages.conda.lock import Package
from envbuilder.packages.conda.prefixes import Installed

pytest.importorskip("rattler")

LOCKED: dict[str, Any] = {
    "name": "numerik", "version": "1.10", "build": "h1_3", "build_number": 3, "subdir": "linux-64",
    "file": "numerik-1.10-h1_3.conda", "channel": "conda-forge", "sha256": "a1" * 32, "size": 12,
    "depends": ["python >=3.10", "libgcc"], "constrains": ["other <2"], "noarch": "",
    "timestamp": 1_735_689_600_123, "license": "MIT",
}  # fmt: skip
BARE = {"size": None, "depends": [], "constrains": [], "timestamp": None, "license": ""}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock does not show UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noarch": "python", "subdir": "noarch"},
        {"noarch": "generic", "subdir": "noarch"},
        BARE,
    ],
)
def test_a_locked_package_comes_back_from_its_record(
    changes: dict[str, Any],
) -> None:
    stated = {**LOCKED, **changes}
    package = Package(**{k: tuple(v) if isinstance(v, list) else v for k, v in stated.items()})
    url = "file:///archives/numerik-1.10-h1_3.conda"
    record = prefixes.record(package, url, "https://conda.anaconda.org/conda-forge")
    assert (record.url, record.channel) == (url, "https://conda.anaconda.org/conda-forge")
    assert record.sha256 == bytes.fromhex("a1" * 32)
    assert prefixes.package(record, "conda-forge", "a1" * 32) == stated


def locked(name: str, subdir: Any = "linux-64") -> Package:
    return Package(
        name=name, version="1.0", build="0", build_number=0, subdir=subdir,
        file=f"{name}-1.0-0.conda", channel="conda-forge", sha256="a" * 64, size=None,
    )  # fmt: skip


def installed(name: str, *entries: dict[str, Any], **more: Any) -> Installed:
    data = {"name": name, "paths_data": {"paths": list(entries)}, **more}
    return Installed(f"{name}-1.0-0.json", data)


def lay(prefix: Path, name: str, content: str | bytes) -> Path:
    path = prefix / "conda-meta" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", ": cannot be read: Expecting"),
        (b"[" * 200_000, ": cannot be read: "),
        (b"[" + b"{}," * 5_000_000 + b"{}]", ": cannot be read: "),
        (b"[]", " is not a package record"),
    ],
    ids=["cut", "deep", "many", "a list"],
)
def test_a_record_that_cannot_be_read_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    path = lay(tmp_path, "a.json", content)
    with pytest.raises(BuildError) as raised:
        prefixes.read(tmp_path)
    assert raised.value.message.startswith(f"{path}{reason}")
    assert len(raised.value.message) < len(str(path)) + 200


@pytest.mark.parametrize("stated", [None, "x", {"paths": 1}, {"paths": [1, "x", None]}])
def test_a_record_without_paths_has_none(stated: Any) -> None:
    assert list(Installed("a.json", {"paths_data": stated}).paths) == []
    assert list(Installed("a.json", {}).paths) == []


# --- clashes


def clashing(*owners: str) -> list[Installed]:
    """`b` installed share/x, too, and the owner's won."""
    moved = {"_path": "share/x__clobber-from-b", "original_path": "share/x"}
    return [installed("b", moved), *(installed(name, {"_path": "share/x"}) for name in owners)]


def place(prefix: Path, first: str | None, second: str | None) -> None:
    """Lay the winner's and the loser's file; `→…` is a link, and None nothing."""
    (prefix / "share").mkdir()
    for name, content in (("x", first), ("x__clobber-from-b", second)):
        path = prefix / "share" / name
        if content is not None and content.startswith("→"):
            path.symlink_to(content[1:])
        elif content is not None:
            path.write_text(content)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("text", "text", True),
        ("text", "texT", False),
        (None, "text", False),
        ("→else", "→else", True),
        ("→x__clobber-from-b", "text", False),
        ("text", "→x", False),
    ],
)
def test_only_different_content_at_one_path_clashes(
    first: str | None, second: str | None, same: bool, tmp_path: Path
) -> None:
    place(tmp_path, first, second)
    expected = None if same else ("share/x", "a", "b")
    assert prefixes.clash(clashing("a"), tmp_path) == expected


def test_a_clash_with_nobody_is_one_with_another(tmp_path: Path) -> None:
    place(tmp_path, "one", "other")
    assert prefixes.clash(clashing(), tmp_path) == ("share/x", "another", "b")
    assert prefixes.clash([installed("a", {"_path": "share/x"})], tmp_path) is None


# --- what names the prefix, and what is not run


def test_files_that_name_the_prefix_and_their_records_differ_from_host_to_host() -> None:
    packages = [
        installed(
            "placed",
            {"_path": "etc/placed.conf", "prefix_placeholder": "/old", "path_type": "hardlink"},
            {"_path": "share/plain", "path_type": "hardlink", "prefix_placeholder": None},
        ),
        installed("plain", {"_path": "share/other", "path_type": "softlink"}),
        installed("tool", {"_path": "bin/tool", "path_type": "unix_python_entry_point"}),
    ]
    assert list(prefixes.placed(packages)) == [
        "etc/placed.conf",
        "conda-meta/placed-1.0-0.json",
        "bin/tool",
        "conda-meta/tool-1.0-0.json",
    ]


# --- what conda reads


def test_a_record_names_public_urls_and_nothing_of_the_build(tmp_path: Path) -> None:
    old = {
        "version": "1.0",
        "fn": "x",
        "url": "file:///build/channel/linux-64/numerik-1.0-0.conda",
        "channel": "https://user:secret@mirror.invalid/",
        "extracted_package_dir": "/build/cache",
        "package_tarball_full_path": "/build/cache/x",
        "link": {"source": "/build/cache", "type": 1},
    }
    packages = [installed("numerik", **old), installed("tool", version="2")]
    (tmp_path / "conda-meta").mkdir()
    channels = {"conda-forge": "https://conda.anaconda.org/conda-forge"}
    prefixes.write(tmp_path, packages, [locked("numerik"), locked("tool", "noarch")], channels)
    first, second = prefixes.read(tmp_path)
    assert first.data == {
        "name": "numerik",
        "paths_data": {"paths": []},
        "version": "1.0",
        "fn": "numerik-1.0-0.conda",
        "url": "https://conda.anaconda.org/conda-forge/linux-64/numerik-1.0-0.conda",
        "channel": "https://conda.anaconda.org/conda-forge/",
    }
    assert second.data["url"].endswith("/conda-forge/noarch/tool-1.0-0.conda")
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "conda-meta").iterdir()}
    assert modes == {0o644}
