"""A conda channel in a folder: packages as real archives, repodata by py-rattler, what hurts both.

    write(package, channel)     # CHANNEL/SUBDIR/NAME-VERSION-BUILD.conda, or .tar.bz2
    index(channel)              # repodata.json, its .zst and shards; changes no archive

The archives are made here, so that the same package has the same bytes everywhere: fixed time,
owner and order. What hurts a channel replaces files and never writes into one, which makes it safe
in a `copy`, whose files are its original's.
"""

from __future__ import annotations

import asyncio
import bz2
import hashlib
import io
import json
import os
import posixpath
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import zstandard
from msgspec import Struct
from msgspec.structs import replace

from tests.support import packed
from tests.support.folders import read_json

PLACEHOLDER = "/placehold".ljust(250, "_") + "/env"
"""The prefix that files were made for; longer than those they are installed into."""
MADE = 1735689600
"""When the packages were made, in seconds: 2025-01-01."""
EVIL = b"# tampered with\n"
"""The content of a file after `tamper`."""


class Entry(Struct, frozen=True):
    """A file of a package, or a link where `link` says to what."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""
    prefix: Literal["", "text", "binary"] = ""
    """How PLACEHOLDER is replaced in it; a binary one is filled up with zeros."""


class Package(Struct, frozen=True, kw_only=True):
    """One build of a package."""

    name: str
    version: str = "1.0"
    build: str = "0"
    build_number: int = 0
    subdir: str = "linux-64"
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    files: Mapping[str, Entry] = {}
    """By path; those of a noarch Python package lie in `site-packages`."""
    noarch: Literal["", "generic", "python"] = ""
    entry_points: tuple[str, ...] = ()
    """Of a noarch Python package: `command = module:function`."""
    timestamp: int = MADE
    """Seconds; repodata has milliseconds."""
    kind: Literal[".conda", ".tar.bz2"] = ".conda"

    @property
    def file(self) -> str:
        """The archive's name."""
        return f"{self.name}-{self.version}-{self.build}{self.kind}"

    @property
    def place(self) -> str:
        """The archive's path in a channel."""
        return f"{self.subdir}/{self.file}"


def write(package: Package, channel: Path) -> Path:
    """Lay a package into a channel; it is offered after `index`."""
    target = channel / package.place
    _replace(target, archive(package))
    return target


def index(channel: Path) -> None:
    """Let py-rattler write the repodata of all subdirs."""
    from rattler.index import index_fs

    (channel / "noarch").mkdir(parents=True, exist_ok=True)
    asyncio.run(index_fs(channel))


def copy(channel: Path, target: Path) -> Path:
    """A channel that may be hurt; its archives are links to the original's."""
    return Path(shutil.copytree(channel, target, copy_function=os.link))


# --- what hurts ---


def tamper(channel: Path, package: Package) -> str:
    """Other content under the same name and size; returns the path of the file that is EVIL.

    The archive is sound in itself: its own hashes go with the content, the repodata's do not.
    """
    target = channel / package.place
    size = target.stat().st_size
    plain = {p: e for p, e in package.files.items() if not e.link and not e.prefix}
    path = max(plain, key=lambda p: len(plain[p].content))
    entry = replace(plain[path], content=EVIL)
    changed = replace(package, files={**package.files, path: entry})
    short = size - len(archive(changed))
    if short < 0:
        raise ValueError(f"{package.file}: there is no room in it for other content")
    _replace(target, archive(changed, padding=short))
    return path


def remove(channel: Path, package: Package) -> None:
    """Take an archive away that the repodata still offer."""
    (channel / package.place).unlink()


def drop_hashes(channel: Path, package: Package, *, keep: tuple[str, ...] = ()) -> None:
    """Repodata that state no sha256 and md5 of a package, but those of `keep`."""

    def change(record: dict[str, Any]) -> None:
        for name in {"sha256", "md5"} - set(keep):
            record.pop(name, None)

    alter(channel, package, change)


def claim_subdir(channel: Path, package: Package, subdir: str) -> None:
    """Repodata that say a package of theirs belongs to another platform."""
    alter(channel, package, lambda record: record.update(subdir=subdir))


def alter(channel: Path, package: Package, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a package's record; only `repodata.json` is left of its subdir's repodata."""
    folder = channel / package.subdir
    stated = read_json(folder / "repodata.json")
    key = "packages.conda" if package.kind == ".conda" else "packages"
    change(stated[key][package.file])
    _replace(folder / "repodata.json", json.dumps(stated).encode())
    shutil.rmtree(folder / "shards", ignore_errors=True)
    for other in folder.glob("repodata*.zst"):
        other.unlink()


# --- archives ---


def archive(package: Package, padding: int = 0) -> bytes:
    """A package's bytes, and as many more as readers pass over."""
    info = {f"info/{n}.json": Entry(_json(c)) for n, c in _info(package).items()}
    if package.kind == ".tar.bz2":
        return bz2.compress(_tar({**info, **_sorted(package.files)})) + b"\0" * padding
    stem = package.file.removesuffix(package.kind)
    parts = {
        "metadata.json": _json({"conda_pkg_format_version": 2}),
        f"pkg-{stem}.tar.zst": zstandard.compress(_tar(_sorted(package.files))),
        f"info-{stem}.tar.zst": zstandard.compress(_tar(info)),
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zipped:
        zipped.comment = b" " * padding
        for name, data in parts.items():
            # Stored as they are: the parts are compressed already.
            zipped.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def _info(package: Package) -> dict[str, object]:
    found: dict[str, object] = {"index": _index(package), "paths": _paths(package)}
    if package.noarch == "python":
        link = {"type": "python", "entry_points": list(package.entry_points)}
        found["link"] = {"noarch": link, "package_metadata_version": 1}
    return found


def _index(package: Package) -> dict[str, object]:
    stated: dict[str, object] = {
        "name": package.name,
        "version": package.version,
        "build": package.build,
        "build_number": package.build_number,
        "subdir": package.subdir,
        "depends": list(package.depends),
        "constrains": list(package.constrains),
        "license": "Apache-2.0",
        "timestamp": package.timestamp * 1000,
    }
    return {**stated, "noarch": package.noarch} if package.noarch else stated


def _paths(package: Package) -> dict[str, object]:
    found = []
    for path, entry in _sorted(package.files).items():
        content = _content(path, package.files)
        stated: dict[str, object] = {
            "_path": path,
            "path_type": "softlink" if entry.link else "hardlink",
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_in_bytes": len(content),
        }
        if entry.prefix:
            if PLACEHOLDER.encode() not in entry.content:
                raise ValueError(f"{package.name}: {path} has no PLACEHOLDER to replace")
            stated |= {"prefix_placeholder": PLACEHOLDER, "file_mode": entry.prefix}
        found.append(stated)
    return {"paths": found, "paths_version": 1}


def _content(path: str, files: Mapping[str, Entry]) -> bytes:
    """A file's bytes; a link's are those of what it leads to, none where that is a folder."""
    entry = files.get(path, Entry())
    if not entry.link:
        return entry.content
    return _content(posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.link)), files)


def _tar(entries: Mapping[str, Entry]) -> bytes:
    members = (
        packed.entry(path, e.link or e.content, mtime=MADE, mode=0o777 if e.link else e.mode)
        for path, e in entries.items()
    )
    return packed.tar(*members, form=tarfile.GNU_FORMAT)


def _sorted(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return dict(sorted(entries.items()))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _replace(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.write_bytes(data)
