"""pylock.toml (PEP 751): every package is a requirement of its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.project.requirement_files import pylock
from envbuilder.project.requirement_files.read import read
from tests.support.edited_text import edited
from tests.support.requirement_projects import DATA, outcome, places, refusal, texts, write

if TYPE_CHECKING:
    from pathlib import Path

UV = (DATA / "uv.pylock.toml").read_text()
WHEEL = (
    'wheels = [{{ name = "{0}-1.0-py3-none-any.whl", url = "https://example.org/{0}.whl",'
    ' hashes = {{ sha256 = "{1}" }} }}]\n'
)


def package(name: str, marker: str = "") -> str:
    wheel = WHEEL.format(name, "0" * 64)
    last = f'marker = "{marker}"\n' if marker else ""
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{wheel}{last}'


# In PDM's form, whose own dependencies are the group `default`.
PDM = f"""\
lock-version = "1.0"
requires-python = ">=3.11"
environments = ["sys_platform == 'linux'"]
extras = ["viz"]
dependency-groups = ["default", "dev"]
default-groups = ["default"]
created-by = "pdm"
{package("rich", "'default' in dependency_groups")}
{package("tqdm", "python_version < '3.12' and 'viz' in extras")}
{package("ruff", "'dev' in dependency_groups or 'viz' in extras")}
"""
GIT = '{ type = "git", url = "https://example.org/x", commit-id = "1" }'
ARCHIVE = '{ url = "https://example.org/x.zip", hashes = { sha256 = "1" } }'
BARE = 'lock-version = "1.0"\ncreated-by = "x"\n'


def test_a_lock_that_uv_exported(tmp_path: Path) -> None:
    write(tmp_path, {"pylock.toml": UV})
    listed = pylock.read(tmp_path, "pylock.toml", (), ())
    lines = texts(listed.requirements)
    assert "rich==15.0.0" in lines
    assert 'requests==2.34.2; sys_platform != "win32"' in lines
    assert [line for line in lines if line.startswith("numpy")] == [
        'numpy==2.2.6; python_full_version < "3.11"',
        'numpy==2.4.6; python_full_version == "3.11.*"',
        'numpy==2.5.5; python_full_version >= "3.12"',
    ]
    assert len(lines) == UV.count("[[packages]]")
    assert places(listed.requirements)[0] == "pylock.toml: certifi"
    assert listed.python == ">=3.10"
    assert (listed.constraints, listed.notes) == ((), ())


def test_extras_and_groups(tmp_path: Path) -> None:
    write(tmp_path, {"pylock.train.toml": PDM})

    def lines(extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> list[str]:
        return texts(read(tmp_path, "pylock.train.toml", extras, groups).requirements)

    assert lines() == ["rich==1.0"]
    assert lines(("VIZ",)) == ["rich==1.0", 'tqdm==1.0; python_version < "3.12"', "ruff==1.0"]
    assert lines((), ("dev",)) == ["rich==1.0", "ruff==1.0"]
    assert refusal(tmp_path, "pylock.train.toml", ["x"]) == (
        "pylock.train.toml: no extra x",
        "It has: viz.",
    )
    assert refusal(tmp_path, "pylock.train.toml", (), ["x"]) == (
        "pylock.train.toml: no group x",
        "It has: default, dev.",
    )
    assert read(tmp_path, "pylock.train.toml").notes == (
        'pylock.train.toml: locked for some environments only: sys_platform == "linux".',
    )


def test_the_project_itself_is_left_out(tmp_path: Path) -> None:
    itself = '[[packages]]\nname = "x"\ndirectory = { path = ".", editable = true }\n'
    write(tmp_path, {"pylock.toml": f"{BARE}{package('rich')}{itself}"})
    listed = read(tmp_path, "pylock.toml")
    assert texts(listed.requirements) == ["rich==1.0"]
    assert listed.notes == ("pylock.toml: x is left out: it is the project itself.",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": not a valid pylock.toml (PEP 751): Missing required value in 'lock-version'"),
        ("[", ": not valid TOML: "),
        (f"{BARE.replace('1.0', '2.0')}packages = []\n", ": pylock version 2.0 is not supported"),
        (f"{BARE}packages = 3\n", ": not a valid pylock.toml (PEP 751): Unexpected type"),
        (
            f'{BARE}[[packages]]\nname = "x"\ndirectory = {{ path = "libs/x" }}\n',
            ": x: the lock states another source for it (directory)",
        ),
        (
            f'{BARE}[[packages]]\nname = "x"\nvcs = {GIT}\n',
            ": x: the lock states another source for it (vcs)",
        ),
        (
            f'{BARE}[[packages]]\nname = "x"\narchive = {ARCHIVE}\n',
            ": x: the lock states another source for it (archive)",
        ),
        (
            BARE + package("x").replace('version = "1.0"', ""),
            ": x: the lock does not state its version",
        ),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, {"pylock.toml": text})
    assert refusal(tmp_path, "pylock.toml")[0].startswith(f"pylock.toml{message}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edited(
        [PDM, f"{BARE}{package('x')}"],
        ['"', "[", "]", "{", "}", "= 3\n", "[[packages]]\n", "'a' in extras", " and (", "name"],
    )
)
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "pylock.toml", text)
