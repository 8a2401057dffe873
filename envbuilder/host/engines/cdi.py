"""Read the Container Device Interface (CDI) specifications of a host, of a snapshot if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.containers.engine.cdi import LARGEST, listed
from envbuilder.host.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.host.snapshot import Reader, Snapshot

FOLDERS = ("etc/cdi", "run/cdi", "var/run/cdi")
"""The default search path of engines; the last two are the same folder on most systems."""
MOST = 64
_SUFFIXES = (".yaml", ".yml", ".json")
_FILES = 16  # per folder


def read(reader: Reader, folders: Iterable[str]) -> None:
    """Read the specifications in `folders`."""
    for folder in folders:
        if folder.startswith("var/run/") and folder.removeprefix("var/") in reader.folders:
            continue
        reader.folder(folder)
    for path in _paths(reader, folders):
        reader.file(path, LARGEST + 1)


def decide(snapshot: Snapshot, folders: Iterable[str]) -> tuple[set[str], list[str]]:
    """Return the devices of all specifications, and a note on each that could not be used."""
    devices: set[str] = set()
    notes = []
    for path in _paths(snapshot, folders):
        text, why = snapshot.files.get(path), snapshot.unreadable.get(path, "it was not read")
        if text is not None:
            try:
                devices |= listed(path, text)
                continue
            except ValueError as error:
                why = str(error)
        note = f"/{clean(path)} lists no usable CDI devices ({clean(why)}); there may be some."
        notes.append(note)
    return devices, notes


def _paths(snapshot: Reader | Snapshot, folders: Iterable[str]) -> list[str]:
    return [
        f"{folder}/{name}"
        for folder in folders
        for name in [n for n in snapshot.folders.get(folder, ()) if n.endswith(_SUFFIXES)][:_FILES]
    ]


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return at most `MOST` of the names, sorted."""
    # Prefer short names: a GPU's number and "all" are more useful than its UUID.
    return tuple(sorted(sorted(set(names), key=lambda n: (len(n), n))[:MOST]))
