"""Names that are not those of the package index: the tables, and what they are used for."""

from __future__ import annotations

import pytest

from envbuilder.core import types
from envbuilder.project import names


def test_the_tables_contradict_neither_themselves_nor_each_other() -> None:
    known = names._popular_names()
    for module, package in names.of_modules().items():
        assert module != types.canonical(package)
        assert names.meant(package) == package
        assert module not in known
    assert all(name == types.canonical(name) for name in known)


@pytest.mark.parametrize(
    ("name", "meant", "mistaken", "nearest"),
    [
        ("cv2", "opencv-python-headless", "", "opencv-python-headless"),
        ("sklearn", "scikit-learn", "", "scikit-learn"),
        ("serial", "serial", "pyserial", "pyserial"),
        ("numpy", "numpy", "", "numpy"),
        ("fastai", "fastai", "", "fastai"),
        ("numpyy", "numpyy", "numpy", "numpy"),
        ("scikit_lern", "scikit-lern", "scikit-learn", "scikit-learn"),
        ("msgpack-python", "msgpack-python", "", "msgpack"),
        ("ours", "ours", "", ""),
        ("a-thing-of-ours", "a-thing-of-ours", "", ""),
        ("jaxx", "jaxx", "", "jax"),
    ],
)
def test_a_name(name: str, meant: str, mistaken: str, nearest: str) -> None:
    name = types.canonical(name)
    found = names.meant(name)
    assert (found, names.mistaken(found), names.nearest(name)) == (meant, mistaken, nearest)
