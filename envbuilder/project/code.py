"""Read a repository's own code without running it: what it imports, and what its program is."""

from __future__ import annotations

import ast
import posixpath
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, filterfalse, product
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from envbuilder.core.errors import InvalidError
from envbuilder.project import notebooks
from envbuilder.project.lines import read_text

_MOST_FILES = 400
_LARGEST_FILE = 1 << 18
_MOST_BYTES = 8 << 20
"""What is read of the code, which the repository's authors wrote: files, bytes of each, of all."""
_ASIDE = re.compile(
    r"(.*/)?(doc(s|umentation)?|tests?)/.*|(.*/)?(setup|conftest|noxfile|tasks|test_.*|.*_test)\.py"
)
"""Files that are no part of a program."""
_SCRIPT = re.compile(r"[^/]+\.py")
_PACKAGE = re.compile(r"[^\W\d]\w*/__main__\.py")
_LIST = re.compile(
    r"(?!(?:docker|src)/[^/]+\Z)(.*/)(setup\.(py|cfg)|pyproject\.toml|requirements\.txt)"
)
_EXAMPLE = re.compile(r"(.*/)?(examples?|demos?|benchmarks?|scripts|tools)/.*|.*\.ipynb")
_SHARED = frozenset({"azure", "google"})
"""Modules of many packages, each of which has a part of it."""


class Use(NamedTuple):
    """Where a module is imported."""

    file: str
    at_start: bool
    """Whether a program does not start without it."""


def without_projects(files: Collection[str], lists: Iterable[str]) -> list[str]:
    """Return files without those of other projects: of folders that have a list of their own.

    A folder with one of these `lists` is none.
    """
    taken = "\n".join(("", *lists))
    foreign = tuple(
        named[1] for named in map(_LIST.fullmatch, files) if named and f"\n{named[1]}" not in taken
    )
    return [file for file in files if not file.startswith(foreign)]


def imports(
    folder: Path,
    files: Collection[str],
    programs: Iterable[Sequence[str]],
    lists: Collection[str],
) -> dict[str, Use]:
    """Return the modules of others that a repository's code imports, the most frequent first.

    Neither the standard library's nor its own: a module or folder of that name somewhere in it. A
    folder with a list of its own is another project, unless its list is one of those taken.
    Programs are the scripts at the top and those that its texts start, with what these import of
    it; if there are none, its code without examples, and all of it if no list is taken.
    """
    code = dict.fromkeys(file for file in files if file.endswith((".py", ".ipynb")))
    own_names = {*re.split(r"\.py\n|[/\n]", "\n".join((*code, ""))), *sys.stdlib_module_names}
    own_names.add("google.colab")  # of a place to run notebooks: nobody can install it
    own = without_projects(files, lists)
    others = dict.fromkeys(f for f in own if f in code and not _ASIDE.fullmatch(f))
    started = [*filter(_SCRIPT.fullmatch, others)]
    named = (_program_file(words, code) for words in programs)
    started += [file for file in named if file in others]
    started = started or [f for f in others if not (lists and _EXAMPLE.fullmatch(f))]
    uses: dict[str, list[Use]] = {}
    read = set[str]()
    left = _MOST_BYTES
    for file in chain(started, others):
        if file in read or left < 0 or len(read) == _MOST_FILES:
            continue
        text = _text(folder, file)
        left -= len(text)
        read.add(file)
        is_started = file in started
        for path, is_top in dict.fromkeys(_imported(text)):
            use = Use(file, is_started and is_top)
            if use.at_start:
                started += (others.keys() & {*_places(path, file)}) - read
            name, _, rest = path.partition("/")
            if name in _SHARED:
                name = f"{name}.{rest.partition('/')[0]}"
            if name[0].isalpha() and name not in own_names:
                uses.setdefault(name, []).append(use)
    return {
        name: max(uses[name], key=attrgetter("at_start"))
        for name in sorted(uses, key=lambda name: -len(uses[name]))
    }


def _text(folder: Path, file: str) -> str:
    """Return the code of a file; empty if it cannot be read."""
    with suppress(InvalidError):
        if file.endswith(".ipynb"):
            return notebooks.imports(folder, file)
        return read_text(folder, file, _LARGEST_FILE)
    return ""


def _imported(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the modules that code imports as paths, and whether it does so at its top level.

    Each name of `from a import b` may be a module, too; `../` stands for a dot at the beginning.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    top = {*tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = "../" * getattr(node, "level", 0)
            for alias in node.names:
                path = filter(None, (getattr(node, "module", ""), alias.name))
                yield above + "/".join(path).replace(".", "/"), node in top


def _places(path: str, file: str) -> Iterator[str]:
    """Yield the files that may be a module which one of the repository imports."""
    for above in (file, f"{file}/..", "", "src"):
        module = posixpath.normpath(posixpath.join(above, path))
        while module:
            yield f"{module}.py"
            yield f"{module}/__init__.py"
            module = posixpath.dirname(module)


# The program of a folder

_STARTS = (".py", "/__main__.py", "/__init__.py")
_GUARD = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_NEVER = re.compile(
    r"(__.*|setup|conftest|noxfile|tasks|hubconf|config|utils|models?|datasets?)\.py|(.*_)?tests?(_.*)?\.py"
    r"|(download|convert|prepare|preprocess|export|generate|install|get|make|create|build|plot)_?.*\.py"
)
_USUAL = (("train.py",), ("main.py",), ("run.py",), ("training.py",), ("app.py",))
_MOST_SCRIPTS = 200
"""Scripts at the top, written by the repository's authors, that are looked into."""


def program_arguments(
    folder: Path, files: Sequence[str], programs: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Return what follows `python` to run the program of a repository; empty if it is unclear.

    `train.py` and the like come first, then the `programs` that its texts show, then the only one
    that is meant to be run.
    """
    scripts = [*filterfalse(_NEVER.fullmatch, filter(_SCRIPT.fullmatch, files))]
    present = {*files}
    packages = (("-m", file.rpartition("/")[0]) for file in filter(_PACKAGE.fullmatch, files))
    shown = sorted(programs, key=lambda words: (PurePosixPath(words[-1]).name,) not in _USUAL)
    for words in (*_USUAL, *shown, *packages):
        path = _program_file(words, present)
        if path and not _NEVER.fullmatch(posixpath.basename(path.removesuffix("/__main__.py"))):
            return tuple(words) if words[0] == "-m" else (path,)
    guarded = [file for file in scripts[:_MOST_SCRIPTS] if _GUARD.search(_text(folder, file))]
    candidates = guarded or scripts
    return tuple(candidates) if len(candidates) == 1 else ()


def _program_file(words: Sequence[str], present: Collection[str]) -> str:
    """Return the file that a command starts Python with; empty if the repository has none."""
    module = words[-1].replace(".", "/")
    named = map("".join, product(("", "src/"), [module], _STARTS))
    return next((path for path in (words[0], *named) if path in present), "")
