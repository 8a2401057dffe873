"""What could be tried in this environment: threads, allocators and start methods. No torch."""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

from ..machine import facts, threads

ALLOCATORS = {
    "tcmalloc": ("libtcmalloc_minimal.so*", "libtcmalloc.so*"),
    "jemalloc": ("libjemalloc.so*",),
    "mimalloc": ("libmimalloc.so*",),
}
"""Allocators that torch's users preload, each with the file names of its library."""

SYSTEM_FOLDERS = ("/usr/local/lib", "/usr/lib", "/usr/lib64", "/lib", "/opt/homebrew/lib")


def survey() -> Dict[str, Any]:
    """Return the facts that decide which settings are worth a trial, as this process sees them."""
    limits = threads.fetch()
    preload = os.environ.get("LD_PRELOAD", "")
    return {
        "threads": {
            **asdict(limits),
            "decided": threads.decide(limits),
            "used": threads.chosen_by_user(os.environ.get("OMP_NUM_THREADS")),
        },
        "allocator": facts.allocator(),
        "allocators": find_allocators(folders(preload)),
        # Other preloaded libraries are kept.
        "preload": [path for path in re.split("[: ]+", preload) if path and not is_allocator(path)],
        "glibc": platform.libc_ver()[0] == "glibc",
        "wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "start_methods": multiprocessing.get_all_start_methods(),
    }


def folders(preload: str) -> List[Path]:
    """Return the folders to search for allocators: of preloaded files, the payload, the system."""
    named = [Path(path).parent for path in re.split("[: ]+", preload) if "/" in path]
    machine = f"{platform.machine()}-linux-gnu"
    system = [Path(folder) for folder in SYSTEM_FOLDERS]
    prefixes = [Path(sys.argv[0]).resolve().parent, Path(sys.prefix) / "lib"]
    return [*named, *prefixes, *(folder / machine for folder in system), *system]


def find_allocators(places: Iterable[Path]) -> Dict[str, str]:
    """Map each allocator found to the path of its library; the first of ``places`` wins."""
    libraries: Dict[str, str] = {}
    for place in places:
        for name, patterns in ALLOCATORS.items():
            path = _first(place, patterns)
            if path is not None:
                libraries.setdefault(name, str(path))
    return libraries


def is_allocator(path: str) -> bool:
    """Return whether a library's name is one of an allocator's."""
    return any(Path(path).name.startswith(f"lib{name}") for name in ALLOCATORS)


def _first(place: Path, patterns: Iterable[str]) -> Optional[Path]:
    for pattern in patterns:
        try:
            files = sorted(path for path in place.glob(pattern) if path.is_file())
        except OSError:
            files = []
        # A name without a version is for the linker; it may be a text file.
        versioned = [path for path in files if re.search(r"\.so\.[0-9]", path.name)]
        if versioned or files:
            # Resolved, as /proc/self/maps will name it.
            return (versioned or files)[0].resolve()
    return None
