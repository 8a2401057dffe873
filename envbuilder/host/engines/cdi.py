"""Read Container Device Interface (CDI) specifications: devices that any engine can use.

A specification has a `kind` and `devices`, each with a `name`; `--device` takes "KIND=NAME".
(The CDI specification, SPEC.md, which also defines the characters allowed in names.)
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.host.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.host.snapshot import Reader, Snapshot

FOLDERS = ("etc/cdi", "run/cdi", "var/run/cdi")
"""The default search path of engines; the last two are the same folder on most systems."""
MOST = 64
_KIND = r"[A-Za-z][A-Za-z0-9_.-]{0,79}/[A-Za-z][A-Za-z0-9_-]{0,79}"
_DEVICE = re.compile(rf"{_KIND}=[A-Za-z0-9][A-Za-z0-9_.:-]{{0,79}}\Z", re.ASCII)
_SUFFIXES = (".yaml", ".yml", ".json")
_FILES = 16  # per folder
_LIMIT = 1 << 20
_DEEPEST = 32


class _Named(Struct):
    name: str


class _Spec(Struct):
    kind: str
    devices: tuple[_Named, ...]


def read(reader: Reader, folders: Iterable[str]) -> None:
    """Read the specifications in `folders`."""
    for folder in folders:
        if folder.startswith("var/run/") and folder.removeprefix("var/") in reader.folders:
            continue
        reader.folder(folder)
    for path in _paths(reader, folders):
        reader.file(path, _LIMIT + 1)


def decide(snapshot: Snapshot, folders: Iterable[str]) -> tuple[set[str], list[str]]:
    """Return the devices of all specifications, and a note on each that could not be used."""
    devices: set[str] = set()
    notes = []
    for path in _paths(snapshot, folders):
        try:
            devices |= _devices(path, snapshot)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            why = clean(str(error))
            notes.append(f"/{clean(path)} lists no usable CDI devices ({why}); there may be some.")
    return devices, notes


def _paths(snapshot: Reader | Snapshot, folders: Iterable[str]) -> list[str]:
    return [
        f"{folder}/{name}"
        for folder in folders
        for name in [n for n in snapshot.folders.get(folder, ()) if n.endswith(_SUFFIXES)][:_FILES]
    ]


def is_device(name: str) -> bool:
    """Return whether `name` is a device's full name."""
    return bool(_DEVICE.match(name))


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return at most `MOST` of the names, sorted."""
    # Prefer short names: a GPU's number and "all" are more useful than its UUID.
    return tuple(sorted(sorted(set(names), key=lambda n: (len(n), n))[:MOST]))


def _devices(path: str, snapshot: Snapshot) -> set[str]:
    text = snapshot.files.get(path)
    if text is None:
        raise ValueError(snapshot.unreadable.get(path, "it was not read"))
    if len(text.encode(errors="replace")) > _LIMIT:
        raise ValueError("it is larger than 1 MiB")
    if path.endswith(".json"):
        spec = decoding.from_json(text, _Spec)
    else:
        spec = decoding.convert(_yaml(text), _Spec)
    devices = {f"{spec.kind}={device.name}" for device in spec.devices}
    wrong = sorted(device for device in devices if not is_device(device))
    if wrong or not devices:
        raise ValueError(f"{wrong[0][:60]!r} names no device" if wrong else "it has no device")
    return devices


@functools.lru_cache(maxsize=_FILES)  # called once for the devices and once for the notes
def _yaml(text: str) -> Any:
    """Parse a YAML document, with every scalar as text.

    The 1,500 lines of a machine with 12 GPUs take 7 ms; in pure Python they would take 40.
    """
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        # The C loader recurses into nested collections: a file of 200,000 "[" crashes the process
        # (tested with PyYAML 6.0.3). Events are read without recursion.
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError("it is nested too deeply")
        return yaml.load(text, loader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
