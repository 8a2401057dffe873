"""The integrity manifest of a native environment: its contents when its build ended.

The list of files is in the environment, and the list's digest in its marker, so that verification
can name the files that were changed, added or removed since. The base interpreter, whose library
the environment uses, is part of it.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from envbuilder.build.backends import tree_digest
from envbuilder.core import decoding, process
from envbuilder.core.errors import BuildError, VerifyError
from envbuilder.core.resources import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from envbuilder.build.backends.tree_digest import Difference, Entry

MARKER = "envbuilder.json"
"""Build metadata in a prefix: that envbuilder made it, from what, and its digests at that time."""
FILES = f"{OWN}/files.jsonl"
OURS = frozenset({MARKER, FILES})
PLACED = f"{OWN}/placed.txt"
"""List of further files that contain the environment's location, one path a line."""
HOST_BOUND = frozenset({"pyvenv.cfg", "bin/python", "venv/pyvenv.cfg"})
"""Host-dependent files: they contain the host interpreter's path or the environment's location, as
do those in PLACED. All others are the same wherever they are built."""
SHOWN = 3
"""Most changed files that a message names."""
_SECONDS = 10.0
_BASE_QUESTION = """
import json, os, sys, sysconfig
v = sysconfig.get_config_var
library = os.path.join(v("PYTHONFRAMEWORKPREFIX") or v("LIBDIR") or "", v("INSTSONAME") or "")
shared = [library] if v("PYTHONFRAMEWORK") or v("Py_ENABLE_SHARED") else []
print(json.dumps([os.path.realpath(sys.executable), *shared, *sys.path]))
"""


def base_of(python: str) -> tuple[str, ...]:
    """Ask an interpreter for its program and its standard library: files and folders.

    Raises `BuildError` if it does not answer.
    """
    # -S: no sitecustomize adds to the path.
    done = process.run([python, "-I", "-S", "-c", _BASE_QUESTION], timeout=_SECONDS)
    try:
        paths = decoding.from_json(done.stdout, list[str])
    except ValueError as error:
        raise BuildError(
            f"{python}: does not say where its library is: {done.last_words}",
            "Choose another interpreter: --python-version.",
        ) from error
    return tuple(p for p in paths if not any(p.startswith(f"{other}/") for other in paths))


def close(prefix: Path, facts: dict[str, Any], base: Sequence[str] = ()) -> None:
    """Write the integrity manifest of a finished environment, and its marker with these facts.

    `base`: what the environment uses of an interpreter outside of it, as `base_of` returns it.
    """
    (prefix / FILES).parent.mkdir(parents=True, exist_ok=True)
    entries = tree_digest.hashed(prefix, tree_digest.walk(prefix, OURS, base))
    (prefix / FILES).write_text(tree_digest.dump(entries))
    digests = {"digest": _portable(prefix, entries), "tree": tree_digest.digest(entries)}
    marker = {**facts, "base": list(base), **digests}
    (prefix / MARKER).write_text(json.dumps(marker, indent=1) + "\n")


def portable_digest(prefix: Path) -> str:
    """Return the digest of an environment's files as they are now, without host-dependent files.

    Raises `OSError` if one cannot be read.
    """
    return _portable(prefix, tree_digest.read(prefix, OURS))


def _portable(prefix: Path, entries: Iterable[Entry]) -> str:
    # A list of exceptions that is itself an exception would let any file be changed.
    bound = host_bound(prefix) - {PLACED}
    inside = (e for e in entries if not e.path.startswith("/"))
    return tree_digest.digest(e for e in inside if e.path not in bound)


def bind(prefix: Path, paths: Iterable[str]) -> None:
    """Record, before `close`, further files that contain the environment's final location."""
    (prefix / PLACED).parent.mkdir(parents=True, exist_ok=True)
    listed = sorted({*_placed(prefix), *paths})
    (prefix / PLACED).write_text("".join(f"{path}\n" for path in listed))


def host_bound(prefix: Path) -> frozenset[str]:
    """Return the host-dependent files of an environment."""
    return HOST_BOUND.union(_placed(prefix))


def _placed(prefix: Path) -> list[str]:
    try:
        return (prefix / PLACED).read_text().splitlines()
    except FileNotFoundError:
        return []


def marker(prefix: Path) -> dict[str, Any]:
    """Return an environment's build metadata; empty if envbuilder did not finish one there."""
    try:
        metadata = json.loads((prefix / MARKER).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    valid = isinstance(metadata, dict) and isinstance(metadata.get("base", []), list)
    return metadata if valid else {}


def is_sealed(prefix: Path) -> bool:
    """Return whether the folder is empty or was made by envbuilder, even if changed since."""
    return (prefix / MARKER).is_file() or (prefix / OWN).is_dir() or not any(prefix.iterdir())


def require_unchanged(prefix: Path, python: str, owner: Callable[[str], str]) -> tuple[Entry, ...]:
    """Raise `VerifyError` if an environment or its base interpreter has changed since its build.

    `python` is its interpreter, below the prefix; `owner` returns the package that a path belongs
    to, or an empty string. Returns what `require_untouched` compares with later.
    """
    what = f"{prefix} was changed after the build"
    with _reading(prefix, python, what):
        # First the identities: a file that changes while others are hashed is noticed later.
        before = _walk(prefix)
        entries = tree_digest.hashed(prefix, before)
    if tree_digest.digest(entries) == marker(prefix).get("tree"):
        return before
    try:
        built = tree_digest.parse((prefix / FILES).read_text())
    except (OSError, ValueError):
        built = ()
    changed = tree_digest.differences(built, entries) if built else ()
    if changed and all(d.path.startswith("/") for d in changed):
        what = "the base interpreter has changed since the build, as by an upgrade"
    raise _error(f"{what}: {_named(changed, owner)}", prefix, python)


def require_untouched(
    prefix: Path, python: str, owner: Callable[[str], str], before: tuple[Entry, ...]
) -> None:
    """Raise `VerifyError` if a file has changed since `require_unchanged` returned `before`.

    Contents are not read again: a file that was changed and restored counts as changed.
    """
    what = f"{prefix} was changed while it was used"
    with _reading(prefix, python, what):
        changed = tree_digest.differences(before, _walk(prefix))
    if changed:
        raise _error(f"{what}: {_named(changed, owner)}", prefix, python)


def _walk(prefix: Path) -> tuple[Entry, ...]:
    return tree_digest.walk(prefix, OURS, map(str, marker(prefix).get("base", ())))


@contextlib.contextmanager
def _reading(prefix: Path, python: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{what}: {error.filename}: cannot be read: {error.strerror}"
        raise _error(message, prefix, python) from error


def _named(changed: Sequence[Difference], owner: Callable[[str], str]) -> str:
    owners = ((d, owner(d.path)) for d in changed[:SHOWN])
    named = ", ".join(f"{d.path} ({d.how}{f', of {o}' if o else ''})" for d, o in owners)
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"{named or f'its list of files ({FILES})'}{more}"


def _error(message: str, prefix: Path, python: str) -> VerifyError:
    return VerifyError(
        message,
        "Build it again: add --rebuild to envbuilder build. To check it as it is: envbuilder"
        f" verify --python {prefix / python}",
    )
