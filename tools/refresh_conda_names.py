"""Write `profiles/names/conda-python.txt` again from parselmouth's mappings that you have fetched.

    python tools/refresh_conda_names.py --version TEXT FILE…

FILE is `files/v0/CHANNEL/compressed_mapping.json` of github.com/prefix-dev/parselmouth, one for
each of the channels conda-forge, bioconda and pytorch: names of conda packages with those of the
Python packages in them, or null. `--version` is the commit and its day, for the head of the table.

If a package holds one of its own name, that one is kept alone; of others, all are. Names are
written as the package index has them. Exit code 2: a file is not what was expected, and nothing was
written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.core import types

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TABLE = Path(__file__).resolve().parent.parent / "profiles" / "names" / "conda-python.txt"
VENDORED = frozenset({"pip", "setuptools", "wheel", "unknown"})
"""What a package of another name only carries along, or what setuptools writes without a name."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?").fullmatch
HEAD = """\
# Conda packages that are Python packages, with their names on the package index if these differ; if
# several, none of them has the name of the package, so a person has to choose. A package that is
# neither here nor in conda.yaml is no Python package: the index may have a stranger's of its name.
# Source: prefix-dev/parselmouth, files/v0/*/compressed_mapping.json of the channels conda-forge,
# bioconda and pytorch, {version}. It is under the license BSD-3-Clause; names
# alone were taken. tools/refresh_conda_names.py writes this file.
"""


class UnexpectedError(Exception):
    """A file is not what was expected; the message is for people."""


def merged(mappings: Iterable[Mapping[str, Sequence[str] | None]]) -> dict[str, list[str]]:
    """Return the packages of several channels, with the Python packages that any of them holds."""
    names: dict[str, set[str]] = {}
    for mapping in mappings:
        for package, held in mapping.items():
            if held and not package.startswith("_"):
                names.setdefault(types.canonical(package), set()).update(map(types.canonical, held))
    result = {}
    for package, held in sorted(names.items()):
        others = sorted(held - VENDORED)
        if package in held:
            result[package] = [package]
        elif others:
            result[package] = others
    return result


def text_of(names: Mapping[str, Sequence[str]], version: str) -> str:
    """Return the table."""
    lines = [
        package if [*held] == [package] else f"{package} {','.join(held)}"
        for package, held in names.items()
    ]
    return HEAD.format(version=version) + "".join(f"{line}\n" for line in lines)


def read(path: Path) -> dict[str, list[str] | None]:
    """Return a mapping. Raise `UnexpectedError` if a file is none."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnexpectedError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or not data:
        raise UnexpectedError(f"{path}: is no mapping of names")
    for package, held in data.items():
        names = [] if held is None else held
        if not isinstance(names, list) or not all(isinstance(n, str) and _NAME(n) for n in names):
            raise UnexpectedError(f"{path}: {package}: expected a list of names, or null")
    return data


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--version", required=True, metavar="TEXT")
    options = parser.parse_args(arguments)
    try:
        names = merged(map(read, options.files))
    except UnexpectedError as error:
        print(error, file=sys.stderr)
        return 2
    TABLE.write_text(text_of(names, options.version), encoding="utf-8")
    print(f"{TABLE.name}: {len(names)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
