"""The doctor in environments that other tools made: what it reads, and what it says."""

from __future__ import annotations

import os
import re
import shlex
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.doctor import installed
from tests.support import elf, environments, host_trees


@pytest.mark.parametrize("name", environments.CASES)
def test_what_is_said_of_an_environment(name: str, tmp_path: Path) -> None:
    case = environments.CASES[name]
    python = environments.lay(tmp_path, case)
    found = environments.judged(tmp_path, case)
    assert found.verdict == case["verdict"], found
    if "accelerator" in case:
        assert found.accelerator == case["accelerator"]
    assert case.get("says", "") in found.proof
    assert case.get("fix", "") in found.fix
    pasted = found.paste.replace(" \\\n  ", " ").replace(str(python), "PYTHON")
    assert pasted.replace(found.place.prefix, "PREFIX") == case.get("paste", "")
    notes = [note.replace(found.place.prefix, "PREFIX") for note in found.notes]
    assert len(notes) == len(case.get("notes", ()))
    for note, part in zip(sorted(notes), case.get("notes", ()), strict=True):
        assert part in note


@pytest.mark.parametrize("host", host_trees.EACH)
@pytest.mark.parametrize("version", ["1.13.1+cu117", "2.5.1+cpu", "2.7.1+cu128", "2.9.0+rocm6.4"])
def test_what_is_printed_is_right_for_the_machine(host: str, version: str, tmp_path: Path) -> None:
    """An environment with the build that the lines install gets no word, on any machine."""
    case = {"host": host, "packages": {"torch": version}}
    environments.lay(tmp_path / "before", case)
    found = environments.judged(tmp_path / "before", case)
    assert bool(found.fix) == (found.verdict != "right")
    if pasted := re.search(r"\btorch==(\S+)", found.paste):
        python = re.search(r"python(\S+) -m venv", found.paste)
        case |= {"packages": {"torch": pasted[1]}, "python": python[1] if python else "3.11"}
        environments.lay(tmp_path / "after", case)
        assert environments.judged(tmp_path / "after", case).verdict == "right"


@pytest.mark.parametrize("name", ["proj", "a {b} %s"])
def test_commands_of_a_project_change_to_its_folder(name: str, tmp_path: Path) -> None:
    project = tmp_path / name
    case = {"host": "rtx4090", "beside": ["uv.lock"], "packages": {"torch": "2.5.1+cpu"}}
    case["prefix"] = f"{name}/.venv"
    environments.lay(tmp_path, case)
    inside = environments.judged(tmp_path, case, PWD=str(project))
    assert inside.paste.startswith("grep -q")
    for folder in (project / "src", tmp_path):  # the commands write to ./pyproject.toml
        outside = environments.judged(tmp_path, case, PWD=str(folder))
        assert outside.paste == f"cd {shlex.quote(str(project))}\n{inside.paste}"


def test_a_module_in_the_current_folder_hides_the_framework(tmp_path: Path) -> None:
    case = {"host": "rtx4090", "packages": {"torch": "2.5.1+cu124"}}
    environments.lay(tmp_path, case)
    path = tmp_path / "work/torch.py"
    path.parent.mkdir()
    path.touch()
    work = str(path.parent)
    (note,) = environments.judged(tmp_path, case, PWD=work, PYTHONPATH=work).notes
    assert note == f"Python may import {path} instead of the installed framework: rename it"
    assert environments.judged(tmp_path, case, PWD=f"{tmp_path}/proj").notes == ()
    (tmp_path / "proj/torch").mkdir()  # a checkout of PyTorch itself
    assert environments.judged(tmp_path, case, PWD=f"{tmp_path}/proj").notes == ()


def program(path: Path, content: bytes = environments.PYTHON) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("environ", "because"),
    [
        ({"VIRTUAL_ENV": "venv", "CONDA_PREFIX": "conda", "PATH": "user/bin"}, "venv VIRTUAL_ENV"),
        (
            {"VIRTUAL_ENV": "gone", "CONDA_PREFIX": "conda", "PATH": "user/bin"},
            "conda CONDA_PREFIX",
        ),
        ({"PWD": "project", "PATH": "user/bin"}, ".venv .venv"),
        ({"PWD": "user", "PATH": "none:ours/bin:user/bin:venv/bin"}, "user PATH"),
        ({"PATH": "shims:user/bin"}, ""),
        ({"PATH": ""}, ""),
    ],
)
def test_which_environment_is_in_use(environ: dict[str, str], because: str, tmp_path: Path) -> None:
    for place in ("venv", "conda", "user", "ours", "project/.venv"):
        program(tmp_path / place / "bin" / ("python3" if place == "user" else "python"))
    program(tmp_path / "shims/python", b"#!/bin/sh\n")
    for name, value in environ.items():
        folders = [str(tmp_path / folder) for folder in filter(None, value.split(":"))]
        environ[name] = ":".join(folders)
    found = installed.find(None, environ, str(tmp_path / "ours"))
    place = found and found.place
    assert (f"{Path(found.place.prefix).name} {place.because}" if place else "") == because


def test_a_script_is_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="is a script, not a Python interpreter"):
        installed.find(program(tmp_path / "python", b"#!/bin/sh\n"), {}, "/ours")


def misplaced() -> bytes:
    """A library whose segments begin at an offset that no file has."""
    content = bytearray(elf.library("a"))
    for segment in (64, 64 + 56):
        struct.pack_into("<Q", content, segment + 8, 1 << 63)
    return bytes(content)


GARBAGE = (
    misplaced(),
    b"",
    b"\xff" * 9,
    b"= =\nhome\nversion = \x1b[31m.x",
    elf.library("a")[:99],
    b"9" * 2**19,
)


@pytest.mark.parametrize("path", ["pyvenv.cfg", "METADATA", "version.py", "INSTALLER", "*.so.1"])
def test_no_content_of_a_file_is_too_odd_to_read(path: str, tmp_path: Path) -> None:
    """What others wrote may be damaged, too large, or no file at all."""
    packages = {"torch": "2.7.1+cu126", "torchvision": "0.22.1+cu126", "numpy": "?"}
    needs = {"torch/lib/libtorch.so.1": ["libcudnn.so.9"]}
    case = {"host": "h200", "packages": packages, "libraries": needs}
    environments.lay(tmp_path, case)
    for place in (tmp_path / "proj").rglob(path):
        for content in GARBAGE:
            place.write_bytes(content)
            assert environments.judged(tmp_path, case).proof
        place.unlink()
        os.mkfifo(place)
        assert environments.judged(tmp_path, case).proof


@given(st.lists(st.text(max_size=30), max_size=5), st.text("0123456789.+acdevu", max_size=12))
@example([f"torch ; {'(' * 3000}os_name == 'nt'{')' * 3000}"], "1.0")
def test_no_requirement_is_too_odd(requires: list[str], version: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        stated = {"version": "1.0", "code": version, "requires": [f"torch{version}", *requires]}
        case = {"host": "h200", "packages": {"torch": stated, "xformers": stated}}
        environments.lay(Path(name), case)
        assert environments.judged(Path(name), case).proof
