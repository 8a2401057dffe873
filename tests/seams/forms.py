"""Files that list requirements: their text, and what a reader of the form must take from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct


class Listed(Struct, frozen=True):
    """What a file says, in words of PEP 508; `requires_python` if it has a rule for Python."""

    lines: tuple[str, ...]
    requires_python: str = ""


def _quoted(lines: Sequence[str]) -> str:
    return ", ".join(f'"{line}"' for line in lines)


def _project(lines: Sequence[str]) -> tuple[str, Listed]:
    text = f'[project]\nname = "thing"\nversion = "1.0"\ndependencies = [{_quoted(lines)}]\n'
    return text, Listed(tuple(lines))


def _old_python(lines: Sequence[str]) -> tuple[str, Listed]:
    head = '[project]\nname = "thing"\ndynamic = ["version", "dependencies"]\n'
    rows = "".join(f'{line} = "*"\n' for line in lines if line.isalnum())
    text = f'{head}requires-python = "<3.11"\n[tool.poetry]\nversion = "1"\n'
    text += f'[tool.poetry.dependencies]\npython = ">=3.8"\n{rows}'
    return text, Listed(tuple(li for li in lines if li.isalnum()), requires_python="<3.11")


def _poetry_groups(lines: Sequence[str]) -> tuple[str, Listed]:
    text, listed = _project(lines)
    return f'{text}requires-python = "<3.11"\n[tool.poetry.group.dev.dependencies]\n', Listed(
        listed.lines, requires_python="<3.11"
    )


def _source_elsewhere(lines: Sequence[str]) -> tuple[str, Listed]:
    text, listed = _project([*lines, "six"])
    text += "[tool.uv.sources]\n"
    text += 'six = [{ path = "./sixes", marker = "sys_platform == \'darwin\'" }]\n'
    return text, Listed((*listed.lines, "six<9; sys_platform == 'linux'"))


def _source_here(lines: Sequence[str]) -> tuple[str, Listed]:
    text, listed = _project([*lines, "six"])
    return f'{text}[tool.uv.sources]\nsix = {{ path = "./sixes" }}\n', Listed(
        (*listed.lines, "six>=9")
    )


def _named_index(lines: Sequence[str]) -> tuple[str, Listed]:
    text, listed = _project(lines)
    return f'{text}[[tool.uv.index]]\nname = "ours"\nurl = "@INDEX_WITH_SECRET@"\n', listed


def _setup(lines: Sequence[str]) -> tuple[str, Listed]:
    text = f'from setuptools import setup\nsetup(name="thing", install_requires=[{_quoted(lines)}])'
    return f"{text}\n", Listed(tuple(lines))


def _setup_file(lines: Sequence[str]) -> tuple[str, Listed]:
    text = "from setuptools import setup\nwith open('base.txt') as f:\n"
    text += "    required = f.read().splitlines()\n"
    text += "setup(name='thing', install_requires=[*required, 'idna'])\n"
    return text, Listed((*lines, "idna"))


def _setup_cfg(lines: Sequence[str]) -> tuple[str, Listed]:
    rows = "".join(f"\n    {line}" for line in lines)
    return f"[metadata]\nname = thing\n[options]\ninstall_requires ={rows}\n", Listed(tuple(lines))


def _plain(lines: Sequence[str]) -> tuple[str, Listed]:
    return "".join(f"{line}\n" for line in lines), Listed(tuple(lines))


def _with_index(lines: Sequence[str]) -> tuple[str, Listed]:
    text, listed = _plain(lines)
    return f"--extra-index-url @INDEX_WITH_SECRET@\n{text}", listed


def _conda(lines: Sequence[str]) -> tuple[str, Listed]:
    rows = "".join(f"  - {line}\n" for line in lines if line.isalnum())
    text = f"name: x\nchannels: [conda-forge]\ndependencies:\n  - python=3.11\n{rows}  - mpi=1.0\n"
    return f"{text}  - pip:\n    - einops\n", Listed(("einops",))


FORMS: dict[str, tuple[str, Callable[[Sequence[str]], tuple[str, Listed]]]] = {
    "plain": ("requirements.txt", _plain),
    "second": ("more.txt", _plain),
    "odd name": ("requirements #1.txt", _plain),
    "with index": ("requirements.txt", _with_index),
    "project": ("pyproject.toml", _project),
    "poetry": ("pyproject.toml", _old_python),
    "poetry groups": ("pyproject.toml", _poetry_groups),
    "source elsewhere": ("pyproject.toml", _source_elsewhere),
    "source here": ("pyproject.toml", _source_here),
    "named index": ("pyproject.toml", _named_index),
    "setup": ("setup.py", _setup),
    "setup, from a file": ("setup.py", _setup_file),
    "setup.cfg": ("setup.cfg", _setup_cfg),
    "conda": ("environment.yml", _conda),
}
"""Form → the file's name, and what makes its text."""
