"""Packages as installers record them, in a folder that Python imports from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.repositories import lay


def record(folder: Path, package: str, files: Iterable[str]) -> None:
    """Record that a package is installed with these files, which are empty."""
    info = f"{package.replace('-', '_')}-1.0.dist-info"
    listed = "".join(f"{file},,\n" for file in files)
    metadata = f"Name: {package}\nVersion: 1.0\n"
    empty = dict.fromkeys((file for file in files if not file.startswith("..")), "")
    lay(folder, {**empty, f"{info}/METADATA": metadata, f"{info}/RECORD": listed})
