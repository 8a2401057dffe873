"""Read Container Device Interface (CDI) specifications, which define devices for any engine.

A specification has a `kind` and a list of `devices`, each of which has a `name`. The value of the
option `--device` is `KIND=NAME`. The CDI specification (SPEC.md) also defines which characters
names may contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import filterfalse
from pathlib import Path
from typing import Any

from msgspec import Struct

from envbuilder.core import decoding, files

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Default folders in which engines look for CDI specifications."""
LARGEST = 1 << 20
"""Maximum size in bytes of a specification, which is written by a vendor's toolkit."""
_KIND = r"[A-Za-z][A-Za-z0-9_.-]{0,79}/[A-Za-z][A-Za-z0-9_-]{0,79}"
_DEVICE = re.compile(rf"{_KIND}=[A-Za-z0-9][A-Za-z0-9_.:-]{{0,79}}\Z", re.ASCII)
_DEEPEST = 32
"""Maximum nesting depth of a specification."""


class _Named(Struct):
    name: str


class _Spec(Struct):
    kind: str
    devices: tuple[_Named, ...]


def devices(folders: Iterable[Path]) -> frozenset[str]:
    """Return the devices that all readable and valid specifications in these folders define."""
    names: set[str] = set()
    for folder in folders:
        with suppress(OSError):
            for file in folder.iterdir():
                with suppress(OSError, ValueError):
                    names |= listed(file.name, files.read(file, LARGEST).decode())
    return frozenset(names)


def listed(path: str, text: str) -> set[str]:
    """Return the names of the devices that a specification defines, such as `nvidia.com/gpu=all`.

    Raise `ValueError` if the specification is invalid or defines no devices.
    """
    if len(text.encode(errors="replace")) > LARGEST:
        raise ValueError("it is larger than 1 MiB")
    try:
        if path.endswith(".json"):
            spec = decoding.from_json(text, _Spec)
        else:
            spec = decoding.convert(_yaml(text), _Spec)
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
    names = {f"{spec.kind}={device.name}" for device in spec.devices}
    wrong = sorted(filterfalse(_DEVICE.match, names))
    if wrong or not names:
        raise ValueError(
            f"{wrong[0][:60]!r} is not the name of a device" if wrong else "it lists no device"
        )
    return names


@lru_cache(maxsize=16)  # called once for the devices and once for the notes
def _yaml(text: str) -> Any:
    """Parse a YAML document, keeping every scalar as a string.

    For the specification of a machine with 12 GPUs (1,500 lines), PyYAML's C loader takes 7 ms and
    its pure Python loader takes 40 ms.
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
