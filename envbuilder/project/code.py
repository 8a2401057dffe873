"""Read a repository's imports and main program from its code, without running the code."""

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
"""Limits on reading untrusted code: number of files, bytes per file, and bytes in total."""
_ASIDE = re.compile(
    r"(.*/)?(doc(s|umentation)?|tests?)/.*|(.*/)?(setup|conftest|noxfile|tasks|test_.*|.*_test)\.py"
)
"""Pattern of files that are not part of a program, such as tests and documentation."""
_SCRIPT = re.compile(r"[^/]+\.py")
_PACKAGE = re.compile(r"[^\W\d]\w*/__main__\.py")
_LIST = re.compile(
    r"(?!(?:docker|src)/[^/]+\Z)(.*/)(setup\.(py|cfg)|pyproject\.toml|requirements\.txt)"
)
_EXAMPLE = re.compile(r"(.*/)?(examples?|demos?|benchmarks?|scripts|tools)/.*|.*\.ipynb")
_SHARED = frozenset({"azure", "google"})
"""Top-level modules that are shared by many packages, each of which provides a part."""


class Use(NamedTuple):
    """A file that imports a module, and whether the program needs that module to start."""

    file: str
    at_start: bool
    """Whether the program needs the module in order to start."""


def without_projects(files: Collection[str], lists: Iterable[str]) -> list[str]:
    """Return the files that do not belong to another project in the same repository.

    A folder counts as another project if it contains its own list of requirements and that list is
    not one of `lists`.
    """
    taken = "\n".join(("", *lists))
    foreign = tuple(
        matched[1]
        for matched in map(_LIST.fullmatch, files)
        if matched and f"\n{matched[1]}" not in taken
    )
    return [file for file in files if not file.startswith(foreign)]


def imports(
    folder: Path,
    files: Collection[str],
    programs: Iterable[Sequence[str]],
    lists: Collection[str],
) -> dict[str, Use]:
    """Return the third-party modules that a repository's code imports, most frequent first.

    Modules of the standard library are skipped, as are modules with the same name as any file or
    folder in the repository. Folders of other projects are skipped as in `without_projects`.

    A program needs only some of the modules to start (`Use.at_start`). These are the modules
    imported by scripts at the top level, by scripts that `programs` start, or by modules of the
    repository that these scripts import. If there are no such scripts, all code is considered. In
    this case, examples are left out if `lists` is not empty.
    """
    code = dict.fromkeys(file for file in files if file.endswith((".py", ".ipynb")))
    own_names = {*re.split(r"\.py\n|[/\n]", "\n".join((*code, ""))), *sys.stdlib_module_names}
    own_names.add("google.colab")  # of a place to run notebooks: nobody can install it
    own = without_projects(files, lists)
    others = dict.fromkeys(f for f in own if f in code and not _ASIDE.fullmatch(f))
    started = [*filter(_SCRIPT.fullmatch, others)]
    start_files = (_program_file(words, code) for words in programs)
    started += [file for file in start_files if file in others]
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
    """Read the code in a file; return an empty string if it cannot be read."""
    with suppress(InvalidError):
        if file.endswith(".ipynb"):
            return notebooks.imports(folder, file)
        return read_text(folder, file, _LARGEST_FILE)
    return ""


def _imported(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the path of each imported module, and whether the import is at the top level.

    Dots in module names become slashes, and each leading dot of a relative import becomes `../`. In
    `from a import b`, `b` may be a module, so it is included in the path (`a/b`).
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
    """Yield the paths at which the repository may contain an imported module."""
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
"""Maximum number of top-level scripts that are searched for a main block. The scripts are
untrusted."""


def program_arguments(
    folder: Path, files: Sequence[str], programs: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Return the `python` arguments that run a repository's program; empty if none is found.

    Common names such as `train.py` are tried first, then `programs` (the commands in the
    repository's documentation), then packages with a `__main__.py`. Finally, a script with a main
    block is used if it is the only one.
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
    """Return the file that a `python` command runs, or an empty string if no such file exists."""
    module = words[-1].replace(".", "/")
    paths = map("".join, product(("", "src/"), [module], _STARTS))
    return next((path for path in (words[0], *paths) if path in present), "")
