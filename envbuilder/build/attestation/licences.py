"""Collect licences as declared in METADATA files and conda channels, without interpreting them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import archives

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from envbuilder.packages.conda.lock import Package
    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File

METADATA_LIMIT = 4 << 20
"""Maximum bytes of a METADATA file (it holds the project's whole description)."""
LONGEST = 120
"""Maximum characters of a declared licence: some projects put the whole licence text there."""
_CLASSIFIER = "License ::"
_EMPTY = frozenset({"", "unknown", "none", "n/a"})


def stated(metadata: bytes) -> tuple[str, ...]:
    """Return a METADATA file's licences: its expression, else `License` line, else classifiers."""
    from packaging.metadata import parse_email

    raw, _ = parse_email(metadata)
    for key, limit in (("license_expression", METADATA_LIMIT), ("license", LONGEST)):
        text = str(raw.get(key, "")).strip()
        if _usable(text, limit):
            return (text,)
    said = (c for c in raw.get("classifiers", []) if c.startswith(_CLASSIFIER))
    leaves = {c.rpartition("::")[2].strip() for c in said}
    return tuple(sorted(leaf for leaf in leaves if _usable(leaf, LONGEST)))


def _usable(text: str, limit: int) -> bool:
    return len(text) <= limit and text.isprintable() and text.lower() not in _EMPTY


def of_wheels(files: Iterable[File], store: Store) -> dict[str, tuple[str, ...]]:
    """Return sha256 → licences of the wheels that are in the store."""
    licences = {}
    for file in files:
        if file.kind in {"wheel", "tool"} and store.has(file.sha256):
            names = store.derived(
                file.sha256, "licences-1", tuple[str, ...], lambda path: stated(read_metadata(path))
            )
            if names:
                licences[file.sha256] = names
    return licences


def of_conda(packages: Iterable[Package]) -> dict[str, tuple[str, ...]]:
    """Return sha256 → the licence that the channel declares, for conda packages."""
    return {p.sha256: (p.license,) for p in packages if _usable(p.license, LONGEST)}


def read_metadata(wheel: Path) -> bytes:
    """Return the METADATA file of a wheel; empty if there is none that can be read.

    The store hashes wheels when it takes them in. One that is damaged later must not abort a report
    on licences; installing it fails anyway.
    """
    try:
        with archives.open_zip(wheel) as archive:
            for path in archive.namelist():
                folder, _, name = path.partition("/")
                if folder.endswith(".dist-info") and name == "METADATA":
                    return archives.zip_content(archive, path, METADATA_LIMIT)
    except (OSError, *archives.BAD_ZIP):
        pass
    return b""
