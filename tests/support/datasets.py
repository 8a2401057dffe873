"""Data sets of which only the size matters."""

from __future__ import annotations

from collections.abc import Mapping

from envbuilder.payload.training.dataset import Dataset, Split


def sized(name: str, train: int, test: int, hashes: Mapping[str, str] = {}) -> Dataset:
    """Return a data set that is said to have so many images, and has none."""
    return Dataset(name, Split(b"", b"", train), Split(b"", b"", test), dict(hashes))
