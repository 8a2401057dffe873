"""Detect conflicting wheels by comparing the lists of files in their RECORDs.

uv installs wheels in parallel, and the last wheel to write a file wins. If two wheels had different
bytes for the same path, the resulting environment would depend on chance, no matter which builder
is used. Therefore, such wheels are rejected, unless a lock prunes a stray file from one of them.
Identical bytes, as in many namespace packages, are allowed.

Only a wheel's zip directory and a few small files are read. Nothing is unpacked. When a lock is
made, the wheels are read with range requests, so that the result does not depend on which wheels
happen to be in the store.
"""

from __future__ import annotations

import configparser
import csv
import io
import itertools
import os
import re
import zipfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core import archives, http, pip, process, types
from envbuilder.core.errors import Hint, InvalidError, first as first_few, shown
from envbuilder.packages.python import indexes
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from envbuilder.core.http import Session
    from envbuilder.core.settings import Settings
    from envbuilder.packages.python.uv import Found
    from envbuilder.profiles.lock import File


RECORD_LIMIT = 16 << 20
"""Maximum size in bytes of a wheel's RECORD. The RECORD of torch's CPU wheel has 1.2 MB."""
_SCRIPTS_LIMIT = 256 << 10
"""Maximum size in bytes of a wheel's entry_points.txt, which has one line per script."""
_LONGEST_LINE = 1000
"""Maximum length of a line in entry_points.txt. The time to parse a line is quadratic in its
length."""
_MOST_BY = 3
"""Maximum number of requiring packages to list in a message."""
SCRIPTS = ("console_scripts", "gui_scripts")
"""Sections of entry_points.txt for which installers create executable scripts."""
_INFO = ".dist-info/"
MACHINE_CODE = re.compile(r"\.(so|dylib|pyd|dll)(\.[0-9.]+)?\Z")
UNREADABLE = (*archives.BAD_ZIP, csv.Error, configparser.Error)
"""Exceptions raised when reading a damaged wheel, or a file that is not a wheel."""


def require_compatible(files: Iterable[File], python: str, store: Store) -> None:
    """Raise `InvalidError` if two wheels install different bytes at the same path.

    `python` is a version in the form X.Y. Only wheels in the store are checked. A wheel with an
    unusable RECORD also causes an `InvalidError`. If a wheel in the store is damaged, remove it and
    raise `BuildError`.
    """
    files = [*files]
    conflict = clash(
        {
            file: _read(file, python, store)
            for file in files
            if file.kind == "wheel" and store.has(file.sha256)
        }
    )
    if conflict is not None:
        sentence, edit = explained(*conflict, files)
        raise InvalidError(sentence, Hint(f"{edit}, and make the lock again", ("lock",)))


def explained(path: str, first: File, second: File, files: Sequence[File]) -> tuple[str, str]:
    """Return an error message about two wheels that conflict at a path, and advice on a solution.

    If the entries in `files` contain their requirements, the message also names the packages that
    require the two wheels.
    """

    def named(wheel: File) -> str:
        if not any(file.requires for file in files):
            return wheel.basename
        by = [file.name for file in files if wheel.name in file.requires]
        reason = f"required by {first_few(by, _MOST_BY)}" if by else "listed"
        return f"{wheel.basename} ({reason})"

    why = (
        f"{named(first)} and {named(second)} both install {path}, perhaps with different content,"
        " so the result would depend on chance"
    )
    edit = (
        f"Exclude one (exclude: [{first.name}] or [{second.name}]), replace one by the other"
        f" (overrides: {{{first.name}: {second.name}}}), or pin another version of one"
    )
    return why, edit


def clash(wheels: Mapping[File, Mapping[str, str]]) -> tuple[str, File, File] | None:
    """Return the first path at which two wheels differ, and the two wheels.

    Return None if there is no such path. The values of `wheels` are the results of `contents`. A
    file whose content is unknown is considered different from every other file.
    """
    owners: dict[str, File] = {}
    for wheel, places in wheels.items():
        for path in sorted(owners.keys() & places.keys()):
            if _differ(wheels[owners[path]][path], places[path]):
                return path, owners[path], wheel
        owners |= dict.fromkeys(places, wheel)
    return None


def prunable(wheels: Mapping[File, Mapping[str, str]], python: str) -> dict[File, tuple[str, ...]]:
    """Return the paths that can be left out of each wheel to resolve conflicts.

    With pip, the wheel installed last wins. In contrast, this function keeps the files of the wheel
    that has the same name as the folder or program. If there is no such wheel, the files of the
    larger wheel (by number of files) are kept. A wheel is not pruned, and the conflict remains, if
    pruning would remove machine code or more than half of the wheel's files.

    A program is kept in the wheel that the project itself lists. If that wheel cannot be
    determined, the conflict remains. `wheels` is the same as for `clash`.
    """
    owners: dict[str, list[File]] = defaultdict(list)
    for wheel, places in wheels.items():
        for path in places:
            owners[path].append(wheel)
    required = {name for wheel in wheels for name in wheel.requires}
    pairs: dict[tuple[File, File], set[str]] = defaultdict(set)
    pruned: dict[File, set[str]] = defaultdict(set)
    site = f"lib/python{python}/site-packages/"
    for path, several in owners.items():
        if len(several) == 1:
            continue
        top = types.canonical(path.removeprefix(site).removeprefix("bin/").partition("/")[0])
        ranked = sorted(several, key=lambda w: (w.name == top, len(wheels[w]), w.name))
        differing = [
            (one, other)
            for one, other in itertools.combinations(ranked, 2)
            if _differ(wheels[one][path], wheels[other][path])
        ]
        if path.startswith("bin/") and differing:
            keeper = _keeper(ranked, required)
            for wheel in ranked:
                if keeper and wheel is not keeper:
                    pruned[wheel].add(path)
            continue
        for pair in differing:
            pairs[pair].add(path)
    for (smaller, _), paths in pairs.items():
        is_stray = all(p.startswith(site) and not MACHINE_CODE.search(p) for p in paths)
        if is_stray and 2 * len(paths) <= len(wheels[smaller]):
            pruned[smaller] |= paths
    return {wheel: tuple(sorted(paths)) for wheel, paths in pruned.items()}


def _keeper(ranked: Sequence[File], required: Collection[str]) -> File | None:
    """Return the wheel that should keep a program if several wheels contain it.

    This is the wheel that the project itself lists, or the wheel with the highest rank if the
    project lists none of them. Return None if the wheel cannot be determined. `ranked` is sorted
    from low to high rank. `required` contains the names of the packages that other packages
    require, and is empty if these names are unknown.
    """
    candidates = [wheel for wheel in ranked if wheel.name not in required]
    if not required or len(candidates) > 1:
        return None
    return candidates[0] if candidates else ranked[-1]


def _differ(left: str, right: str) -> bool:
    """Return whether two files may differ, given the identifiers of their contents.

    An empty identifier stands for unknown content.
    """
    return not left or left != right


def contents(
    stem: str, python: str, members: Iterable[str], record: str, entry_points: str
) -> dict[str, str]:
    """Return the paths of the files that a wheel installs, each with an identifier of its content.

    Paths are relative to the environment. The identifier is the hash from RECORD or, for a
    generated script, the function that the script runs. The identifier is empty if RECORD has no
    hash for the file.

    `stem` is NAME-VERSION as in the names of the metadata folders inside the wheel. `members` lists
    the files in the wheel. Raise `ValueError`, `csv.Error` or `configparser.Error` for an invalid
    wheel.
    """
    scripts = _scripts(entry_points)
    hashes = dict.fromkeys(members, "")
    for path in (*hashes, *scripts):
        _require_inside(path)
    for row in filter(None, csv.reader(io.StringIO(record, newline=""))):
        _require_inside(row[0])
        if row[0] in hashes:
            hashes[row[0]] = "".join(row[1:2])
    site = f"lib/python{python}/site-packages/"
    data = f"{stem}.data/"
    places = {
        "purelib": site,
        "platlib": site,
        "scripts": "bin/",
        "headers": f"include/site/python{python}/{types.canonical(stem.partition('-')[0])}/",
        "data": "",
    }
    installed = {}
    for path, identifier in hashes.items():
        target = site + path
        if path.startswith(data):
            kind, _, rest = path.removeprefix(data).partition("/")
            if kind not in places:
                raise ValueError(f"{path!r} is outside the folders that wheels install to")
            target = places[kind] + rest
        installed[target] = identifier
    installed |= scripts
    for path in installed:
        if wrong := archives.path_objection(path) or archives.reserved_objection(
            path, with_python=True
        ):
            raise ValueError(wrong)
    return installed


def _require_inside(path: str) -> None:
    if path.startswith("/") or (".." in path and ".." in path.split("/")):
        raise ValueError(f"{shown(path)} leads outside the environment")


def _scripts(entry_points: str) -> dict[str, str]:
    """Return the scripts that an installer creates, each with the function that it runs."""
    if any(len(line) > _LONGEST_LINE for line in entry_points.splitlines()):
        raise ValueError(f"entry_points.txt has a line of more than {_LONGEST_LINE} characters")
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#", ";"), strict=False, interpolation=None
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(entry_points)
    scripts = {}
    for section in SCRIPTS:
        if parser.has_section(section):
            for name, function in parser.items(section):
                scripts[f"bin/{name}"] = "runs " + "".join(function.partition("[")[0].split())
    return scripts


def _read(wheel: File, python: str, store: Store) -> dict[str, str]:
    """Return the `contents` of a wheel in the store; raise `InvalidError` for an invalid wheel.

    If the stored wheel is damaged, remove it and raise `BuildError`.
    """
    try:
        return store.derived(
            wheel.sha256, f"contents-1-{python}", dict[str, str], lambda path: opened(path, python)
        )
    except (*UNREADABLE, OSError) as error:
        store.checked(wheel)
        raise InvalidError(
            f"{wheel.basename}: the wheel does not install the same files everywhere:"
            f" {str(error)[:_LONGEST_LINE]}",
            "The file matches the lock, so the wheel is malformed. Report it to the"
            f" project that publishes it, and pin another version of {wheel.name}.",
        ) from error


def opened(source: Path | io.RawIOBase, python: str) -> dict[str, str]:
    """Open a wheel, and return its `contents`.

    Raise `OSError` or one of `UNREADABLE` if the wheel cannot be read.
    """
    with archives.open_zip(source) as archive:
        members = [name for name in archive.namelist() if not name.endswith("/")]
        record_paths = records(members)
        if len(record_paths) != 1:
            raise ValueError(f"expected exactly one {_INFO}RECORD file, found {len(record_paths)}")
        stem = record_paths[0].removesuffix(f"{_INFO}RECORD")
        record = text(archive, record_paths[0], RECORD_LIMIT)
        scripts = text(archive, f"{stem}{_INFO}entry_points.txt", _SCRIPTS_LIMIT)
    return contents(stem, python, members, record, scripts)


def records(members: Iterable[str]) -> list[str]:
    """Return the paths of a wheel's RECORD files. A valid wheel has exactly one."""
    return [m for m in members if m.endswith(f"{_INFO}RECORD") and m.count("/") == 1]


def text(archive: zipfile.ZipFile, name: str, limit: int) -> str:
    """Return the text of a file in an archive, or an empty string if the file does not exist.

    Raise one of `UNREADABLE` if the file cannot be read.
    """
    return archives.zip_content(archive, name, limit).decode() if name in archive.namelist() else ""


PARALLEL = 8
_TAIL = 64 << 10
"""Number of bytes to request first. In most wheels, the end of the file contains the zip directory
and the RECORD."""
_PART = 512 << 10
"""Minimum number of bytes to request after the first request."""
_DIRECTORY = 16 << 20
"""Maximum size in bytes of a wheel's zip directory, which has 130 to 170 bytes per member. The
directory of torch's CPU wheel, with 12,000 members, has 1.5 MB."""
_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")


class RemoteFile(io.RawIOBase):
    """A file on a server that is read with range requests, so that only parts are downloaded.

    A server that does not support range requests sends the complete file. In this case, at most 64
    MiB are read.
    """

    def __init__(self, session: Session, url: str) -> None:
        """Request the end of the file.

        Like all methods, this raises `OSError` if the server does not send the requested bytes.
        """
        self._session = session
        self._url = url
        self._at = 0
        self._request(f"-{_TAIL}")

    def _request(self, asked: str) -> None:
        headers = {"Range": f"bytes={asked}"}
        with http.request(self._session, "GET", self._url, headers) as response:
            response.raise_for_status()
            self._data = http.read(response)
        self._begin = 0
        self._size = len(self._data)
        matched = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if response.status_code == 206 and matched:
            self._begin = int(matched[1])
            self._size = int(matched[2])

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position, and return the new position in bytes from the start of the file."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, or all remaining bytes if `size` is negative.

        Raise `zipfile.BadZipFile` if more than `_DIRECTORY` bytes would be returned. The limit is
        needed because the server determines how large the zip directory claims to be.
        """
        left = max(self._size - self._at, 0)
        count = left if size < 0 else min(size, left)
        if count > _DIRECTORY:
            raise zipfile.BadZipFile(f"its directory of {count} bytes is too large")
        return super().read(count) or b""

    def readinto(self, buffer: bytearray, /) -> int:  # type: ignore[override]
        """Fill a buffer with the next bytes, and return the number of bytes written to it.

        The bytes are taken from the part of the file that has already been received. If necessary,
        another part is requested.
        """
        count = min(len(buffer), max(self._size - self._at, 0))
        if not self._begin <= self._at <= self._at + count <= self._begin + len(self._data):
            end = min(self._size, self._at + max(count, _PART))
            self._request(f"{self._at}-{end - 1}")
        begin = self._at - self._begin
        data = self._data[begin : begin + count] if begin >= 0 else b""
        if len(data) < count:
            raise OSError("the server sent a different part of the file than requested")
        buffer[:count] = data
        self._at += count
        return count


def remote_contents(
    wheels: Iterable[Found], python: str, settings: Settings, variables: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return the `contents` of each wheel, keyed by the wheel's sha256.

    Wheels that cannot be read are left out. `python` is a version in the form X.Y. `variables` are
    the environment variables for uv, whose index URLs may contain credentials.
    """
    store = Store.of(settings)
    logins = {**os.environ, **variables}
    result: dict[str, dict[str, str]] = {}

    def read(wheel: Found) -> None:
        # Not those of the store: whether a wheel is there must not matter.
        inputs = f"{wheel.file.sha256} listed-1-{python}"
        for _ in range(2):  # a connection may break
            with suppress(*UNREADABLE, OSError):
                result[wheel.file.sha256] = store.remembered(
                    inputs, dict[str, str], lambda: opened(source(wheel.url), python)
                )
                return

    def source(url: str) -> Path | RemoteFile:
        return pip.local_folder(url) or RemoteFile(session, indexes.with_login(url, logins))

    with http.open_session() as session, process.pool(PARALLEL, session.stop) as pool:
        tuple(pool.map(read, (wheel for wheel in wheels if wheel.url)))
    return result
