"""What lies around a command decides nothing that is not documented: one row a file or variable.

Two indexes on loopback have the same package: the user's in version 1.0, a stranger's in 2.0. Each
row lays files and sets variables, and states whose version is locked, located and downloaded. A
canary is a program that nobody may start; a victim is a file that nobody may overwrite.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from envbuilder.core import pip
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.core.settings import Configuration, Settings
from envbuilder.host import interpreters
from envbuilder.locks import resolve
from envbuilder.packages import fetch, upstream
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.profile import Profile
from envbuilder.project.forms import read
from tests.support import index_server, make_wheels
from tests.support.shipped import shipped_profile

OURS = "1.0"
THEIRS = "2.0"
OTHER_USER = 54321
CANARY = "#!/bin/sh\ntouch {marker}\nexit 1\n"
PYTHON_CANARY = "open({marker!r}, 'w')\n"
INDEX = "index-url = '{theirs}'\n"
NAMED = "[[index]]\nname = 'lab'\nurl = '{theirs}'\ndefault = true\n"
LIMITS = (
    "exclude-newer = '2001-01-01'\nno-index = true\noffline = true\n"
    f"override-dependencies = ['top=={THEIRS}']\nconstraint-dependencies = ['top>1']\n"
)
PIP = "python = '{canary}'\noutput-file = '{victim}'\nno-binary = [':all:']\n"
LOGIN = {"UV_INDEX_LAB_USERNAME": "me", "UV_INDEX_LAB_PASSWORD": "secret"}


class Row(NamedTuple):
    """Files (below the folder above the project) and variables, and whose package they give."""

    files: Mapping[str, str]
    environ: Mapping[str, str] = {}
    version: str = OURS
    foreign: bool = False
    """Another user's files."""


def in_pyproject(settings: str) -> str:
    tables = settings.replace("[[index]]", "[[tool.uv.index]]").replace("[pip]", "[tool.uv.pip]")
    return f"[project]\nname = 'x'\nversion = '1'\n[tool.uv]\n{tables}"


ROWS = {
    # The working folder and those above it: nothing is let in.
    "uv.toml: index": Row({"project/uv.toml": INDEX}),
    "uv.toml: named index": Row({"project/uv.toml": NAMED}, LOGIN),
    "uv.toml: limits": Row({"project/uv.toml": LIMITS}),
    "uv.toml: pip": Row({"project/uv.toml": f"[pip]\n{PIP}"}),
    "uv.toml: damaged": Row({"project/uv.toml": "["}),
    "uv.toml above: index": Row({"uv.toml": INDEX}),
    "uv.toml above: pip": Row({"uv.toml": f"[pip]\n{PIP}"}),
    "uv.toml above, another user's: pip": Row({"uv.toml": f"{INDEX}[pip]\n{PIP}"}, foreign=True),
    "tool.uv: index": Row({"project/pyproject.toml": in_pyproject(INDEX)}),
    "tool.uv: named index": Row({"project/pyproject.toml": in_pyproject(NAMED)}, LOGIN),
    "tool.uv: limits": Row({"project/pyproject.toml": in_pyproject(LIMITS)}),
    "tool.uv: version": Row({"project/pyproject.toml": in_pyproject("required-version='<0.1'")}),
    "tool.uv: pip": Row({"project/pyproject.toml": in_pyproject(f"[pip]\n{PIP}")}),
    "tool.uv above, another user's": Row({"pyproject.toml": in_pyproject(INDEX)}, foreign=True),
    "pip.conf": Row({"project/pip.conf": "[global]\nindex-url = {theirs}\n"}),
    ".netrc": Row({"project/.netrc": "machine 127.0.0.1 login me password stolen\n"}),
    ".python-version": Row({"project/.python-version": "{canary}\n", ".python-version": "2.7\n"}),
    "modules": Row({f"project/{n}.py": PYTHON_CANARY for n in ("uv", "sitecustomize", "json")}),
    "bin": Row({f"project/{n}": CANARY for n in ("uv", "python3", ".venv/bin/python")}),
    # Variables: those of documented settings are let in, and no others.
    "UV_DEFAULT_INDEX": Row({}, {"UV_DEFAULT_INDEX": "{theirs}"}, THEIRS),
    "UV_INDEX_URL": Row({}, {"UV_INDEX_URL": "{theirs}"}, THEIRS),
    "UV_FIND_LINKS": Row({}, {"UV_FIND_LINKS": "../wheels"}, THEIRS),
    "UV_CONFIG_FILE": Row(
        {"settings/my.toml": INDEX},
        {"UV_CONFIG_FILE": "../settings/my.toml"},
        THEIRS,
    ),
    "UV_NO_CONFIG": Row(
        {"home/.config/uv/uv.toml": INDEX}, {"UV_NO_CONFIG": "1", "UV_DEFAULT_INDEX": "{ours}"}
    ),
    "UV_ of resolution": Row(
        {"project/pins.txt": f"top=={THEIRS}\n"},
        {
            **{f"UV_{n}": "{project}/pins.txt" for n in ("CONSTRAINT", "OVERRIDE", "EXCLUDE")},
            "UV_EXCLUDE_NEWER": "2001-01-01",
            "UV_NO_BINARY": "1",
            "UV_PRERELEASE": "x",
            "UV_RESOLUTION": "x",
            "UV_TORCH_BACKEND": "x",
        },
    ),
    "UV_ of the machine": Row(
        {"project/uv.toml": INDEX},
        {
            "UV_PYTHON": "{canary}",
            "UV_WORKING_DIR": "{project}",
            "UV_PROJECT": "{project}",
            "UV_CACHE_DIR": "{victim}",
            "UV_SYSTEM_PYTHON": "1",
            "UV_PYTHON_DOWNLOADS": "x",
        },
    ),
    "PIP_INDEX_URL": Row({}, {"PIP_INDEX_URL": "{theirs}"}, THEIRS),
    "PIP_FIND_LINKS": Row({}, {"PIP_FIND_LINKS": "../wheels"}, THEIRS),
    "PIP_ of the machine": Row(
        {},
        {
            "PIP_PYTHON": "{canary}",
            "PIP_NO_BINARY": ":all:",
            "PIP_LOG": "{victim}",
            "PIP_CONSTRAINT": "none.txt",
            "PIP_ONLY_BINARY": ":none:",
            "PIP_TARGET": "x",
        },
    ),
    "PYTHON": Row(
        {f"modules/{n}.py": PYTHON_CANARY for n in ("sitecustomize", "json", "platform")},
        {
            "PYTHONPATH": "{project}/../modules",
            "PYTHONSTARTUP": "{canary}",
            "PYTHONHOME": "{project}",
            "PYTHONINSPECT": "1",
        },
    ),
    "VIRTUAL_ENV": Row(
        {"project/venv/bin/python": CANARY},
        {"VIRTUAL_ENV": "{project}/venv", "CONDA_PREFIX": "{project}/venv"},
    ),
    # The user's own files: let in.
    "own uv.toml": Row({"home/.config/uv/uv.toml": INDEX}, version=THEIRS),
    "own uv.toml, a stranger's beside": Row(
        {"home/.config/uv/uv.toml": INDEX, "project/uv.toml": LIMITS},
        version=THEIRS,
    ),
    "own pip.conf": Row(
        {"home/.config/pip/pip.conf": "[global]\nindex-url = {theirs}\n"},
        version=THEIRS,
    ),
}


class Surroundings:
    """A user's home, a project below a folder that others may write, and the two indexes."""

    def __init__(self, folder: Path, ours: str, theirs: str, monkeypatch: Any) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.marker = folder / "canary-ran"
        self.victim = folder / "victim"
        self.victim.write_text("precious")
        canary = folder / "canary"
        self.names = {
            "ours": ours,
            "theirs": theirs,
            "project": str(self.project),
            "victim": str(self.victim),
            "canary": str(canary),
            "marker": str(self.marker),
        }
        self._write(canary, CANARY)
        self.project.mkdir()
        monkeypatch.chdir(self.project)
        for name in [n for n in os.environ if n.startswith(("UV_", "PIP_", "XDG_", "PYTHON"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        self._write(folder / "home/.config/uv/uv.toml", f"index-url = '{ours}'\n")
        # The files of the machine that runs the tests.
        files = pip.files
        monkeypatch.setattr(
            pip,
            "files",
            lambda environ, **_: tuple(f for f in files(environ) if f.is_relative_to(folder)),
        )
        self._setenv = monkeypatch.setenv

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**self.names))
        path.chmod(0o755)

    def lay(self, row: Row) -> None:
        for name, text in row.files.items():
            self._write(self.folder / name, text)
            if row.foreign:
                os.chown(self.folder / name, OTHER_USER, OTHER_USER)
        for name, value in row.environ.items():
            self._setenv(name, value.format(**self.names))

    def require_untouched(self) -> None:
        assert not self.marker.exists(), "a program was started that nobody may start"
        assert self.victim.read_text() == "precious"


def lay_wheels(folder: Path, version: str) -> list[Any]:
    folder.mkdir()
    made = [make_wheels.write(folder, "top", {"top.py": b""}, version=version)]
    made.append(make_wheels.write(folder, "uv", {}, version="0.13.8"))
    return [upstream.read_wheel(path) for path in made]


@pytest.fixture
def asked() -> list[str]:
    """What the stranger's index was asked for."""
    return []


@pytest.fixture
def around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> Iterator[Surroundings]:
    ours = lay_wheels(tmp_path / "ours", OURS)
    theirs = lay_wheels(tmp_path / "wheels", THEIRS)
    with (
        index_server.serve(ours) as our_url,
        index_server.serve(theirs, requests=asked) as their_url,
    ):
        yield Surroundings(tmp_path, our_url, their_url, monkeypatch)


def plain_profile() -> Profile:
    return msgspec.structs.replace(
        shipped_profile("cpu"),
        platforms=("linux/amd64",),
        python=profiles.Python(default="3.11", supported=("3.11",)),
        requirements=("top",),
        indexes={},
        system_packages=(),
        preload=(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_only_documented_settings_decide(
    row: Row, around: Surroundings, asked: list[str], tmp_path: Path
) -> None:
    if row.foreign and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    around.lay(row)
    own = Settings(
        project=None, config_dir=tmp_path, cache_dir=tmp_path / "cache", data_dir=tmp_path,
        configuration=Configuration(),
    )  # fmt: skip
    lock = resolve.resolve(plain_profile(), own)
    assert {f.name: f.version for f in lock.targets[0].files} == {"top": row.version}
    urls = " ".join(place.url for place in fetch.places())
    let_in = row.version == THEIRS
    folder = str(around.folder / "wheels")
    assert (around.names["theirs"] in urls or "../wheels" in urls or folder in urls) == let_in
    files = lock.targets[0].files
    assert fetch.fetch(files, lock.targets[0], own, PlainProgress(lambda _: None)) == 1
    with pytest.raises(ToolError):
        interpreters.find("3.6", ("3.6",), "x86_64", environ={})
    assert let_in or not asked, "the stranger's index was asked"
    around.require_untouched()


BACKEND = "[build-system]\nrequires=[]\nbuild-backend='setup'\nbackend-path=['.']\n"
LISTS = {
    "requirements.txt": (
        "-e .",
        "--index-url {theirs}",
        "--extra-index-url {theirs}",
        "--find-links {theirs}",
        "--no-binary top",
        "--only-binary=:none:",
        "--pre",
        "--trusted-host 127.0.0.1",
        "-r ../../secret",
    ),
    "pyproject.toml": (f"[project]\nname='x'\nversion='1'\ndynamic=['dependencies']\n{BACKEND}",),
}
"""Lines that would make an installer run code, or ask another index."""
LOCATIONS = ("top @ file://{project}", "top @ {theirs}/top-2.0-py3-none-any.whl")
"""Requirements with a place of their own: read, and nothing is asked there without consent."""


@pytest.mark.parametrize(("file", "text"), [(f, t) for f, ts in LISTS.items() for t in ts])
def test_a_list_of_requirements_runs_nothing_and_names_no_index(
    file: str, text: str, around: Surroundings, asked: list[str]
) -> None:
    around.lay(Row({f"project/{file}": f"{text}\n", "project/setup.py": PYTHON_CANARY}))
    with contextlib.suppress(InvalidError):
        assert not read(around.project, file).requirements
    around.require_untouched()
    assert not asked


@pytest.mark.parametrize("text", LOCATIONS)
def test_a_location_is_read_and_not_asked(
    text: str, around: Surroundings, asked: list[str]
) -> None:
    around.lay(Row({"project/requirements.txt": f"{text}\n", "project/setup.py": PYTHON_CANARY}))
    (line,) = read(around.project, "requirements.txt").requirements
    assert line.text == "top"
    around.require_untouched()
    assert not asked
