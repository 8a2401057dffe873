"""Compile Python modules; runs with the Python that is to load the bytecode.

    python compile_bytecode.py FOLDER        all modules below a folder of packages, in place
    python compile_bytecode.py < LINES       each line: a JSON array [SOURCES, TARGET, PATH]

The bytes depend on the source and the version of Python alone: they hold no time, no import
compares them with their source again, and constants are written without references, since whether
there is one depends on reference counts (version 2 of the format). What cannot be compiled, such as
a template, or be written so is left out: each import compiles it, as it would without. So are the
packages' own tests: a fifth of the modules beside PyTorch, which almost nobody imports.
"""

import importlib.util
import json
import marshal
import sys
import warnings
from pathlib import Path

_VERSION = 2
_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a file that holds a hash of its source which no import checks (PEP 552)."""
_TESTS = "tests"
_SCAFFOLD = "_virtualenv.py"
"""What uv adds to the packages of every environment."""


def compiled(source: bytes, path: str) -> "bytes | None":
    """Return the bytecode of a module; None if it cannot have the same bytes each time.

    `path` goes into it; Python replaces it by the actual path on import.
    """
    try:
        code = compile(source, path, "exec", dont_inherit=True)
        content = marshal.dumps(code, _VERSION)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
    return header + content


def write(sources: Path, target: Path, path: str) -> None:
    """Compile the module `path` below `sources` into the same place below `target`."""
    if _TESTS in Path(path).parts:
        return
    content = compiled((sources / path).read_bytes(), path)
    if content is not None:
        place = target / importlib.util.cache_from_source(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def main() -> None:
    """Compile what the command line or the input names."""
    warnings.simplefilter("ignore")
    for line in [] if sys.argv[1:] else sys.stdin:
        sources, target, path = json.loads(line)
        write(Path(sources), Path(target), path)
    for folder in map(Path, sys.argv[1:]):
        for module in sorted(folder.rglob("*.py")):
            path = module.relative_to(folder).as_posix()
            if path != _SCAFFOLD:
                write(folder, folder, path)


if __name__ == "__main__":
    main()
