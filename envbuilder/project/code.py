"""Read a repository's own Python code without running it: what it imports, and its program."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

from envbuilder.core.errors import InvalidError
from envbuilder.project.lines import read_text

_MOST_FILES = 400
_LARGEST_FILE = 1 << 18
_MOST_BYTES = 8 << 20


def imports(folder: Path, files: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of others that a repository's code imports, the most frequent first.

    Neither the standard library's nor its own: a module or folder of that name somewhere in it.
    """
    code = [file for file in files if file.endswith(".py")]
    local_names = {part.removesuffix(".py") for file in code for part in PurePosixPath(file).parts}
    counts, left = Counter[str](), _MOST_BYTES
    for file in islice(code, _MOST_FILES):
        if left > 0 and not _is_aside(PurePosixPath(file)):
            try:
                text = read_text(folder, file, _LARGEST_FILE)
            except InvalidError:
                continue
            left -= len(text)
            counts.update({*_imported(text)})
    return tuple(name for name, _ in counts.most_common() if name not in local_names)


def _imported(text: str) -> Iterator[str]:
    """Yield the top-level names of modules that a file imports, none of the standard library."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in (name.partition(".")[0] for name in names):
            if name not in sys.stdlib_module_names and name.isascii() and not name.startswith("_"):
                yield name


# The program of a folder

_GUARD = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_NEVER = re.compile(
    r"(setup|conftest|noxfile|tasks|hubconf|config|utils|models?|datasets?)\.py|(.*_)?tests?(_.*)?\.py"
    r"|(download|convert|prepare|preprocess|export|install|get|make|create|build|plot)_?.*\.py"
)
_USUAL = ("train.py", "main.py", "run.py", "training.py", "app.py")
_MOST_SCRIPTS = 200


def program_arguments(
    folder: Path, files: Sequence[str], shown: Sequence[Sequence[str]] = ()
) -> tuple[str, ...]:
    """Return what follows `python` to run the program of a repository; empty if it is unclear.

    `train.py` and the like come first, then what its texts show (`shown`), then the only one that
    is meant to be run.
    """
    top = [file for file in files if "/" not in file and file.endswith(".py")]
    scripts = [file for file in top if not _NEVER.fullmatch(file)]
    for usual in _USUAL:
        if usual in scripts:
            return (usual,)
    present = {*files}
    for words in shown:
        module = words[-1].replace(".", "/")
        is_module = words[0] == "-m" and {f"{module}.py", f"{module}/__main__.py"} & present
        path = str(PurePosixPath(words[0]))
        if is_module or (path in present and not _NEVER.fullmatch(PurePosixPath(path).name)):
            return tuple(words) if is_module else (path,)
    packages = [
        ("-m", file.removesuffix("/__main__.py"))
        for file in files
        if re.fullmatch(r"[^\W\d]\w*/__main__\.py", file)
    ]
    meant = [file for file in scripts[:_MOST_SCRIPTS] if _is_program(folder, file)]
    candidates = [*packages, *((file,) for file in meant or (() if packages else scripts))]
    return candidates[0] if len(candidates) == 1 else ()


def _is_aside(path: PurePosixPath) -> bool:
    return path.name in {"setup.py", "conftest.py"} or any(
        re.fullmatch(r"docs?|tests?", part) for part in path.parts[:-1]
    )


def _is_program(folder: Path, file: str) -> bool:
    try:
        return _GUARD.search(read_text(folder, file, _LARGEST_FILE)) is not None
    except InvalidError:
        return False
