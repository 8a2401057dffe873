"""Detect conflicting wheels, from the files that each installs according to its RECORD.

uv installs wheels in parallel, and the last one to write a file wins. Two wheels with different
bytes for one path would therefore give an environment that differs from build to build, in every
builder: they are refused. The same bytes twice, as in many namespace packages, are fine. Only a
wheel's directory and RECORD are read; nothing is unpacked.
"""

from __future__ import annotations

import configparser
import csv
import io
from typing import TYPE_CHECKING

from envbuilder.core import archives
from envbuilder.core.archives import path_objection, reserved_objection
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import shown
from envbuilder.packages.python.indexes import canonical

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File

RECORD_LIMIT = 16 << 20
"""Maximum bytes of a RECORD; that of torch's CPU wheel has 1.2 MB."""
_SCRIPTS_LIMIT = 256 << 10
"""Maximum bytes of entry_points.txt, which has a line for each script."""
_LONGEST_LINE = 1000
"""Maximum length of a line in it; parsing takes time quadratic in the length."""
_INFO = ".dist-info/"
UNREADABLE = (*archives.BAD_ZIP, csv.Error, configparser.Error)
"""Exceptions from reading a damaged wheel, or an archive that is not a wheel."""


def require_compatible(files: Iterable[File], python: str, store: Store) -> None:
    """Raise `InvalidError` if two wheels install different bytes at one path.

    Only wheels that are in the store are checked; `python` is X.Y. The same error names a wheel
    whose RECORD is unusable. A wheel that is damaged in the store is a `BuildError`, and removed.
    """
    wheels = [f for f in files if f.kind == "wheel" and store.has(f.sha256)]
    conflict = clash({wheel: _read(wheel, python, store) for wheel in wheels})
    if conflict is None:
        return
    _, first, second = conflict
    raise InvalidError(
        explained(*conflict),
        f"Leave {first.name} or {second.name} out of the profile's requirements, or pin another"
        " version of one of them, and make the lock again: envbuilder lock",
    )


def explained(path: str, first: File, second: File) -> str:
    """Return what is wrong with two wheels that fill a path differently."""
    return (
        f"{first.basename} and {second.basename} both install {path}, and nothing says that its"
        " content is the same: which one an environment gets would be chance"
    )


def clash(wheels: Mapping[File, Mapping[str, str]]) -> tuple[str, File, File] | None:
    """Return the first path that two wheels fill differently, and the two; None if there is none.

    Each wheel's contents are as `contents` returns them. Unknown content differs from everything.
    """
    owners: dict[str, File] = {}
    for wheel, places in wheels.items():
        for path in sorted(owners.keys() & places.keys()):
            there = wheels[owners[path]][path]
            if not there or there != places[path]:
                return path, owners[path], wheel
        owners |= dict.fromkeys(places, wheel)
    return None


def contents(
    stem: str, python: str, members: Iterable[str], record: str, entry_points: str
) -> dict[str, str]:
    """Return what a wheel installs: path below an environment → identifier of its content.

    The identifier is a hash from RECORD, or the function that a generated script runs; empty if
    RECORD has none. `stem` is NAME-VERSION, as in the wheel's own folders, and `members` are its
    files. Raise `ValueError`, `csv.Error` or `configparser.Error` for anything invalid in a wheel.
    """
    scripts = _scripts(entry_points)
    listed = dict.fromkeys(members, "")
    for path in (*listed, *scripts):
        _require_inside(path)
    for row in csv.reader(io.StringIO(record, newline="")):
        if row:
            _require_inside(row[0])
        if row and row[0] in listed:
            listed[row[0]] = row[1] if len(row) > 1 else ""
    site, data = f"lib/python{python}/site-packages/", f"{stem}.data/"
    places = {
        "purelib": site,
        "platlib": site,
        "scripts": "bin/",
        "headers": f"include/site/python{python}/{canonical(stem.partition('-')[0])}/",
        "data": "",
    }
    installed = {}
    for path, identifier in listed.items():
        place = site + path
        if path.startswith(data):
            kind, _, rest = path.removeprefix(data).partition("/")
            if kind not in places:
                raise ValueError(f"{path!r} is in none of the folders that wheels install to")
            place = places[kind] + rest
        installed[place] = identifier
    installed |= scripts
    for path in installed:
        if wrong := path_objection(path) or reserved_objection(path, with_python=True):
            raise ValueError(wrong)
    return installed


def _require_inside(path: str) -> None:
    if path.startswith("/") or (".." in path and ".." in path.split("/")):
        raise ValueError(f"{shown(path)} leads out of the environment")


def _scripts(entry_points: str) -> dict[str, str]:
    """Return the scripts that an installer writes: path → the function that each runs."""
    if any(len(line) > _LONGEST_LINE for line in entry_points.splitlines()):
        raise ValueError(f"entry_points.txt has a line of more than {_LONGEST_LINE} characters")
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#", ";"), strict=False, interpolation=None
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(entry_points)
    return {
        f"bin/{name}": "runs " + "".join(function.partition("[")[0].split())
        for section in ("console_scripts", "gui_scripts")
        if parser.has_section(section)
        for name, function in parser.items(section)
    }


def _read(wheel: File, python: str, store: Store) -> dict[str, str]:
    """Return the contents of a wheel in the store."""
    try:
        return store.derived(
            wheel.sha256, f"contents-1-{python}", dict[str, str], lambda path: opened(path, python)
        )
    except (*UNREADABLE, OSError) as error:
        store.checked(wheel)
        raise InvalidError(
            f"{wheel.basename}: not a wheel that installs the same everywhere: {error}",
            "These are the bytes that the lock names. Tell its makers, and pin another version of"
            f" {wheel.name} in the profile's requirements.",
        ) from error


def opened(source: Path | io.RawIOBase, python: str) -> dict[str, str]:
    """Return the `contents` of a wheel; raise one of `UNREADABLE` or `OSError`."""
    with archives.open_zip(source) as archive:
        members = [name for name in archive.namelist() if not name.endswith("/")]
        record_paths = records(members)
        if len(record_paths) != 1:
            raise ValueError(f"it has {len(record_paths)} files {_INFO}RECORD, not one")
        stem = record_paths[0].removesuffix(f"{_INFO}RECORD")
        record = text(archive, record_paths[0], RECORD_LIMIT)
        scripts = text(archive, f"{stem}{_INFO}entry_points.txt", _SCRIPTS_LIMIT)
    return contents(stem, python, members, record, scripts)


def records(members: Iterable[str]) -> list[str]:
    """Return which of a wheel's files are its RECORD: exactly one in a valid wheel."""
    return [m for m in members if m.endswith(f"{_INFO}RECORD") and m.count("/") == 1]


def text(archive: zipfile.ZipFile, name: str, limit: int) -> str:
    """Return a member's text, empty if there is none; raise one of `UNREADABLE` if damaged."""
    return archives.zip_content(archive, name, limit).decode() if name in archive.namelist() else ""
