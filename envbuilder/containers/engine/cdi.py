"""Read which devices the files of the Container Device Interface (CDI) describe on this machine.

Files are JSON or YAML. The engines themselves read them: a wrong guess is their error.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core import files

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where engines look unless they are configured otherwise."""
_KIND = re.compile(rb"""(?<![\w.-])kind["']?\s*:\s*["']?([\w.-]{1,80}/[\w-]{1,80})""")
_NAME = re.compile(rb"""(?<![\w.-])name["']?\s*:\s*["']?([\w.:-]{1,80})""")
_BYTES = 1 << 20


def specifications(folders: Iterable[Path]) -> list[bytes]:
    """Return the contents of the files that can be read."""
    texts = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for file in folder.iterdir():
                with contextlib.suppress(OSError):
                    texts.append(files.read(file, _BYTES))
    return texts


def devices(folders: Iterable[Path]) -> frozenset[str]:
    """Return the names of the devices, such as `nvidia.com/gpu=all`."""
    return frozenset(name for text in specifications(folders) for name in _names(text))


def _names(specification: bytes) -> set[str]:
    kind, names = _KIND.search(specification), _NAME.findall(specification)
    return {f"{kind[1].decode()}={name.decode()}" for name in names} if kind else set()
