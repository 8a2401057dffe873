"""Read files of a project: of limited size, and never one outside of it or another user's."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from envbuilder.core import files, ownership
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1 << 20
"""Maximum size in bytes of a file that is written by hand."""
LARGEST_LOCK = 32 << 20
"""Maximum size in bytes of a lock; those of large projects have 3 MB."""

_MOST_PARTS = 12
"""Maximum number of parts of a dotted key: tomllib takes time quadratic in it."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*+(?:{_PART}\.[ \t]*+){{{_MOST_PARTS}}}", re.MULTILINE)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)\Z")


def read_text(project: Path, file: str, limit: int = LARGEST, where: str = "") -> str:
    """Return the UTF-8 text of a file; `file` is its path in the project.

    `where` is the line that names the file, for messages. Raises `InvalidError`, of a file that
    does not exist with an `OSError` as its cause.
    """
    return _decoded(read_bytes(project, file, limit, where), escaped(file))


def read_bytes(project: Path, file: str, limit: int, where: str = "") -> bytes:
    """Return the content of a file of a project, like `read_text`."""
    name = f"{where}: {escaped(file)}" if where else escaped(file)
    try:
        path = (project / file).resolve(strict=True)
        inside = path.is_relative_to(project.resolve())
        ownership.require_own(project / file)
        content = files.read(path, limit) if inside else b""
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        problem = "no such file" if missing else f"cannot be read: {error.strerror or error}"
        raise InvalidError(f"{name}: {problem}") from error
    except (RuntimeError, ValueError) as error:  # a circle of links; a path with a NUL
        raise InvalidError(f"{name}: cannot be read: not a valid path") from error
    if not inside:
        raise InvalidError(
            f"{name}: leads out of the project", "Copy the file into the project and name the copy."
        )
    return content


def _decoded(content: bytes, name: str) -> str:
    hint = "Save it as UTF-8."
    if content.startswith(_UTF16):
        raise InvalidError(f"{name}:1: UTF-16 text, as PowerShell's > writes it", hint)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"{name}:{line}: not UTF-8 text", hint) from error


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Return the data of a TOML document; raise `InvalidError` with the line of a mistake."""
    if key := _LONG_KEY.search(text):
        number = text.count("\n", 0, key.end()) + 1
        raise InvalidError(f"{escaped(file)}:{number}: a key of more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InvalidError(f"{escaped(file)}: not valid TOML: nested too deeply") from error
    except ValueError as error:
        place = _TOML_PLACE.search(str(error))
        line = f":{place[1]}" if place and place[1] else ""
        problem = escaped(_TOML_PLACE.sub("", str(error)), 200)
        raise InvalidError(f"{escaped(file)}{line}: not valid TOML: {problem}") from error
