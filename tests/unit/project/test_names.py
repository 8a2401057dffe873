"""Names that are not those of the package index: the tables, and what they are used for."""

from __future__ import annotations

import pytest

from envbuilder.core import types
from envbuilder.project import names


def test_the_tables_contradict_neither_themselves_nor_each_other() -> None:
    known = names._popular_names()
    for module, package in names.of_modules().items():
        assert module != types.canonical(package)
        assert names.alias_of(package) == package
        assert module not in known
    for name in known:
        assert name == types.canonical(name)


@pytest.mark.parametrize(
    ("name", "meant", "mistaken", "nearest"),
    [
        ("cv2", "opencv-python-headless", "", "opencv-python-headless"),
        ("serial", "serial", "pyserial", "pyserial"),
        ("numpy", "numpy", "", ""),
        ("numpyy", "numpyy", "numpy", "numpy"),
        ("scikit_lern", "scikit-lern", "scikit-learn", "scikit-learn"),
        ("msgpack-python", "msgpack-python", "", "msgpack"),
        ("ours", "ours", "", ""),
        ("jaxx", "jaxx", "", ""),
        ("tbb", "tbb", "", ""),
    ],
)
def test_a_name(name: str, meant: str, mistaken: str, nearest: str) -> None:
    name = types.canonical(name)
    found = names.alias_of(name)
    assert (found, names.mistaken(found), names.nearest(name)) == (meant, mistaken, nearest)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("numpy", ("numpy",)),
        ("redis-py", ("redis",)),
        ("typing-extensions", ("typing-extensions",)),  # conda's table has its other spelling
        ("hydra", ("hydra-core",)),  # by hand, before the table
        ("python-avro", ("avro", "avro-python3")),
        ("unrar", ()),  # Debian's
        ("mkl_random", ()),  # a library of numpy's
        ("cudnn", ()),
        *((name, ()) for name in ("gromacs", "mpi", "plink", "redis", "salmon", "star")),
    ],
)
def test_what_a_conda_package_is_on_the_index(name: str, expected: tuple[str, ...]) -> None:
    assert names.distributions_of(name) == expected
    assert names.distribution_of(name) == ("".join(expected) if len(expected) == 1 else "")


def test_the_table_of_condas_names_is_normalised_and_needs_no_row_by_hand() -> None:
    table = names._python_of_conda()
    assert len(table) > 23_000
    for name, held in table.items():
        for each in (name, *held.split(",")):
            assert types.canonical(each) == each
    for name, distribution in names._conda().python.items():
        assert table.get(types.canonical(name)) != distribution, f"{name} is needless"


@pytest.mark.parametrize(
    ("module", "package"),
    [("cv2", "opencv-python-headless"), ("einops", "einops"), ("serial", "pyserial"), ("mpi", "")],
)
def test_a_module_is_a_package_only_if_a_table_says_so(module: str, package: str) -> None:
    assert names.distribution_of_module(module) == package
