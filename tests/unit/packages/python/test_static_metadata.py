"""What a source states of itself is read without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.packages.python import static_metadata
from envbuilder.packages.python.static_metadata import Backend, Metadata
from tests.support.repositories import lay

PROJECT = """
[project]
name = "tiny"
version = "1.0"
requires-python = ">=3.9"
dependencies = ["six>=1 ; python_version < '3.12' or os_name == 'nt'", "numpy"]
[project.optional-dependencies]
all = ["rich"]
"""
RICH = 'rich; extra == "all"'
INFO = "Metadata-Version: {}\nName: tiny\nVersion: 1.0\nRequires-Dist: six (>=1)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Backend()),
        ("[build-system]\nrequires = ['x>=1']\n", Backend(("x>=1",))),
        (
            "[build-system]\nrequires = []\nbuild-backend = 'a:b'\nbackend-path = ['.']\n",
            Backend((), "a:b", (".",)),
        ),
        ("[build-system]\nrequires = 3\n", Backend()),
        ("build-system = 3\n", Backend()),
    ],
)
def test_backends(tmp_path: Path, text: str, expected: Backend) -> None:
    lay(tmp_path, {"pyproject.toml": text} if text else {})
    assert static_metadata.backend(tmp_path) == expected


def test_a_damaged_pyproject_is_an_error(tmp_path: Path) -> None:
    lay(tmp_path, {"pyproject.toml": "["})
    with pytest.raises(BuildError, match="not valid TOML"):
        static_metadata.backend(tmp_path)


@pytest.mark.parametrize(
    ("files", "requires"),
    [
        ({}, None),
        ({"pyproject.toml": "[project]\nname = 'tiny'\nversion = 1\n"}, None),
        (
            {"pyproject.toml": PROJECT},
            ('six>=1; python_version < "3.12" or os_name == "nt"', "numpy", RICH),
        ),
        (
            {
                "pyproject.toml": PROJECT.replace(
                    "[project.o", "dynamic = ['dependencies']\n[project.o"
                )
            },
            None,
        ),
        ({"PKG-INFO": INFO.format("2.1")}, None),
        ({"PKG-INFO": INFO.format("2.2")}, ("six>=1",)),
        ({"PKG-INFO": f"{INFO.format('2.4')}Dynamic: requires-dist\n"}, None),
        ({"PKG-INFO": f"{INFO.format('2.4')}Dynamic: license\n"}, ("six>=1",)),
    ],
)
def test_what_no_build_can_change(
    tmp_path: Path, files: dict[str, str], requires: tuple[str, ...] | None
) -> None:
    read = static_metadata.declared(lay(tmp_path, files))
    assert (read and read.requires_dist) == requires
    assert read is None or (read.name, read.version) == ("tiny", "1.0")


def test_what_setuptools_recorded(tmp_path: Path) -> None:
    requires = "six\n\n[:python_version < '3.8' or os_name == 'nt']\ntyping\n\n[all]\nrich\n"
    requires += "\n[all:sys_platform == 'win32']\ncolorama>=1; os_name == 'nt'\n"
    info = "Metadata-Version: 1.1\nName: tiny\nVersion: 1.0\n"
    folder = lay(tmp_path, {"PKG-INFO": info, "src/tiny.egg-info/requires.txt": requires})
    assert static_metadata.recorded(folder) == Metadata(
        name="tiny",
        version="1.0",
        requires_dist=(
            "six",
            'typing; python_version < "3.8" or os_name == "nt"',
            RICH,
            'colorama>=1; os_name == "nt" and sys_platform == "win32" and extra == "all"',
        ),
    )
    assert static_metadata.recorded(tmp_path / "src") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy (>=1.)", "numpy>=1"),
        ("pytz (>=2011k)", "pytz"),
        ("pytz (>=2011k,<2030)", "pytz<2030"),
        ("numpy (>=1.7.*,<2)", "numpy<2,>=1.7"),
        ("nonsense [", "nonsense ["),
    ],
)
def test_requirements_of_old_releases(line: str, expected: str) -> None:
    assert static_metadata.requirement(line) == expected
    assert static_metadata.requirement(f"{line}; os_name == 'nt'").startswith(expected)


def test_pythons_of_old_releases() -> None:
    text = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Python: >=2.7,!=3.0*,<4.*\n"
    read = static_metadata.metadata(text)
    assert read
    assert set(read[0].requires_python.split(",")) == {">=2.7", "<4"}
