"""Deliver what a command has made: written to every place that it is for, and shown after that.

The places that a user names are looked at before the work, which may take hours. What is there is
replaced only if it is a result of the same kind by its content: a user may misspell a path, and
lose a key, a lock or notes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from envbuilder.core import console, decoding, files
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.core.text import encodable

_PAGE = b'<meta name="generator" content="envbuilder">'
Recognize = Callable[[bytes], bool]
"""Return whether a file's content is a result of some kind."""


def document(*keys: str) -> Recognize:
    """Return what recognizes a JSON document by keys that it has."""

    def recognize(content: bytes) -> bool:
        try:
            stated = decoding.strict_json(content)
        except ValueError:
            return False
        return isinstance(stated, dict) and stated.keys() >= {*keys}

    return recognize


def is_page(content: bytes) -> bool:
    """Return whether this is a page of envbuilder's."""
    return _PAGE in content


class Place(NamedTuple):
    """A file that the user names for a result, if any, and what may be replaced there."""

    option: str
    path: Path | None
    is_ours: Recognize

    def require(self) -> None:
        """Raise `InvalidError` if a result cannot be written here, or would replace other files."""
        path = self.path
        if path is None:
            return
        import tempfile

        hint = f"Name another file with {self.option}."
        if os.path.exists(path) and not self._is_replaceable(path):  # noqa: PTH110 (never raises)
            problem = "exists, and is another kind of file: nothing was written"
            raise InvalidError(f"{path}: {problem}", f"Move it away, or n{hint[1:]}")
        try:
            folder = next(above for above in path.absolute().parents if above.exists())
            tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.").close()
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            raise InvalidError(f"{path}: {problem}", hint) from error

    def _is_replaceable(self, path: Path) -> bool:
        if not path.is_file() or not os.access(path, os.R_OK):
            return False
        with path.open("rb") as stream:
            content = stream.read(decoding.LARGEST)
        return not content or self.is_ours(content)

    def write(self, make: Callable[[], str]) -> Path | None:
        """Make a result's text and write it, if there is a path, which is returned.

        Raise `EnvbuilderError` if that fails, or if another file has come to be here.
        """
        if self.path is None:
            return None
        self.require()
        hint = f"Name another file with {self.option}."
        return files.save(self.path, encodable(make()).encode(), BuildError, hint)


def require(*places: Place) -> None:
    """Raise `InvalidError` for the first place that no result can be written to."""
    for number, place in enumerate(places):
        place.require()
        for other in places[:number]:
            if place.path and other.path and place.path.absolute() == other.path.absolute():
                raise InvalidError(
                    f"{place.path}: named by {other.option} and {place.option}", "Name two files."
                )


def deliver(
    writes: Iterable[tuple[str, Callable[[], Path | None]]], show: Callable[[], object]
) -> list[EnvbuilderError]:
    """Write all results, then show them and say where they are; return what failed.

    Each write is named in messages, and returns its path. Nothing that fails stops the others. It
    is no failure if the reader of the output has gone.
    """
    errors: list[EnvbuilderError] = []
    notes = []
    for what, write in writes:
        try:
            if path := write():
                notes.append(f"{what}: {path}")
        except EnvbuilderError as error:
            errors.append(error)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            errors.append(BuildError(f"the {what} cannot be written: {reason}"))
    try:
        show()
        console.flush()
    except console.NoReaderError:
        console.discard()
    except console.OutputError as error:
        console.discard()
        errors.append(BuildError(error.message) if notes else error)
    for note in notes:
        console.progress().note(note)
    return errors
