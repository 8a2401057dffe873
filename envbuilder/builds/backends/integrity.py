"""The integrity manifest of a native environment: a list of its files at the end of its build.

The manifest is stored in the environment, and the manifest's digest in the environment's marker.
With both, verification can list the files that have been changed, added or removed since the build.
The manifest also covers the base interpreter, because the environment uses that interpreter's
libraries. The digest of a tree depends on the contents of files, but not on their times, their
owners or how they are stored. Bytecode (`__pycache__`) is covered only if the build compiled it,
because interpreters add more bytecode later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from envbuilder.builds.shared import BYTECODE, SHARED, SharedFile, shared
from envbuilder.core import decoding, process
from envbuilder.core.errors import BuildError, Hint, VerifyError, first
from envbuilder.core.files import file_sha256
from envbuilder.core.resources import OWN

if TYPE_CHECKING:
    from envbuilder.packages.store import Store

MARKER = "envbuilder.json"
"""Name of the marker, a file of build metadata in the prefix. The marker shows that envbuilder made
the environment. It contains the inputs of the environment, and the digests of its files at the end
of the build."""
FILES = f"{OWN}/files.jsonl"
OURS = frozenset({MARKER, FILES, SHARED})
PLACED = f"{OWN}/placed.txt"
"""File that lists, one path per line, the additional files that contain the environment's
location."""
HOST_BOUND = frozenset({"pyvenv.cfg", "bin/python", "venv/pyvenv.cfg"})
"""Host-dependent files, which contain the path of the host's interpreter or the environment's
location. `PLACED` lists additional host-dependent files. All other files are the same wherever they
are built."""
SHOWN = 3
"""Maximum number of changed files that a message names."""
_SECONDS = 10.0
_BASE_QUESTION = """
import json, os, sys, sysconfig
v = sysconfig.get_config_var
library = os.path.join(v("PYTHONFRAMEWORKPREFIX") or v("LIBDIR") or "", v("INSTSONAME") or "")
shared = [library] if v("PYTHONFRAMEWORK") or v("Py_ENABLE_SHARED") else []
print(json.dumps([os.path.realpath(sys.executable), *shared, *sys.path]))
"""
_SHARE = 64
"""Number of files that a thread hashes in one batch."""
_PACKAGES = ("site-packages", "dist-packages")
"""Folders of installed packages in a standard library. Virtual environments do not use these
packages."""


_LANDMARK = re.compile(
    rf"(?:.*/)?bin/python$|(?:.*/(?:{'|'.join(_PACKAGES)})|{re.escape(OWN)})/[^/]+"
)
"""Matches the path of the interpreter. In any other path, it matches the part that identifies a
package, a distribution or a file that envbuilder added."""


class Entry(Struct, frozen=True, array_like=True, order=True, gc=False):
    """An entry of a folder tree, such as a file, a link or a folder.

    `content` is the sha256 or the identity of a file, or the target of a link.
    """

    path: str
    """The path relative to the root, with forward slashes; absolute if it is outside the root."""
    kind: Literal["file", "executable", "link", "folder", "other"]
    content: str = ""


def read_tree(root: Path, skip: Collection[str] = ()) -> tuple[Entry, ...]:
    """Return all entries below a folder except the paths in `skip`, sorted by path.

    Links are not followed. Raise `OSError` if a file or folder cannot be read.
    """
    return hashed(root, walk(root, skip))


def walk(root: Path, skip: Collection[str] = (), outside: Iterable[str] = ()) -> tuple[Entry, ...]:
    """Return the same entries as `read_tree`, but with the identities of files instead of hashes.

    The identity of a file consists of its inode, size, times and number of links. `outside`
    contains paths of libraries and programs outside the root, which need not exist. A path that is
    a file is included as an entry. For a path that is a folder, the contents of the folder are
    included, except for installed packages. Outside the root, links to files are followed.
    """
    entries = list(_entries(root, frozenset(skip)))
    for file in shared(root):
        if f"/{BYTECODE}/" in file.path and file.path not in skip:
            with suppress(FileNotFoundError):
                entries.append(_file(file.path, os.lstat(f"{root}/{file.path}")))
    entries += _outside(outside)
    return tuple(sorted(entries))


def _outside(paths: Iterable[str]) -> Iterator[Entry]:
    for path in map(Path, paths):
        if path.is_dir():
            packages = frozenset(str(path / name) for name in _PACKAGES)
            yield from _entries(Path("/"), packages, f"{path}/", follow=True)
        elif path.is_file():
            yield _file(str(path), path.stat())


def hashed(root: Path, entries: tuple[Entry, ...], store: Store | None = None) -> tuple[Entry, ...]:
    """Replace the content of each file's entry with the file's sha256, as in `read_tree`.

    If `store` is given, it caches the hashes for as long as the files do not change.
    """
    files = [e.path for e in entries if _is_file(e)]

    def of_share(share: Sequence[str]) -> list[str]:
        return [file_sha256(root / path) for path in share]

    def read() -> tuple[str, ...]:
        return tuple(chain.from_iterable(process.in_batches(of_share, files, _SHARE)))

    remembered = (
        store.remembered(f"hashes 1 {listed(entries)}", tuple[str, ...], read) if store else read()
    )
    hashes = dict(zip(files, remembered, strict=True))
    return tuple(Entry(e.path, e.kind, hashes[e.path]) if _is_file(e) else e for e in entries)


def _is_file(entry: Entry) -> bool:
    return entry.kind in {"file", "executable"}


def _file(path: str, status: os.stat_result) -> Entry:
    # A write changes the ctime, and no program can set it: unlike size and mtime it tells.
    identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    kind: Literal["file", "executable"] = "file"
    if status.st_mode & stat.S_IXUSR:
        kind = "executable"
    return Entry(path, kind, " ".join(map(str, (*identity, status.st_nlink))))


def _entries(
    root: Path, skip: frozenset[str], below: str = "", *, follow: bool = False
) -> Iterator[Entry]:
    with os.scandir(os.path.join(root, below)) as entries:  # noqa: PTH118 (many folders)
        for entry in entries:
            path = f"{below}{entry.name}"
            if path in skip or entry.name == BYTECODE:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield Entry(path, "folder")
                yield from _entries(root, skip, f"{path}/", follow=follow)
            elif entry.is_file(follow_symlinks=follow):
                yield _file(path, entry.stat(follow_symlinks=follow))
            elif entry.is_symlink():
                yield Entry(path, "link", os.readlink(entry.path))  # noqa: PTH115
            else:
                yield Entry(path, "other")


def listed(entries: Iterable[Entry]) -> str:
    """Format entries as text, one JSON array per line. Names that are not UTF-8 are escaped."""
    return "".join(map(_line, entries))


def _line(entry: Entry) -> str:
    # `json.dumps` for each of 30,000 lines takes five times as long.
    quote = json.encoder.encode_basestring_ascii
    return f'[{quote(entry.path)}, "{entry.kind}", {quote(entry.content)}]\n'


def parsed(text: str) -> tuple[Entry, ...]:
    """Parse text that `listed` returned, and return the entries.

    Raise `ValueError` if the text is malformed.
    """
    try:
        return tuple(decoding.convert(json.loads(line), Entry) for line in text.splitlines())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def tree_digest(entries: Iterable[Entry]) -> str:
    """Return a digest of all entries, in the form `sha256:…`."""
    return _digest(listed(entries))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Difference(Struct, frozen=True):
    """A path at which two trees differ, and how they differ."""

    path: str
    how: Literal["changed", "added", "missing"]


def differences(before: Iterable[Entry], after: Iterable[Entry]) -> tuple[Difference, ...]:
    """Return the differences between two trees, sorted by path."""
    old = {entry.path: entry for entry in before}
    new = {entry.path: entry for entry in after}
    changes = []
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            changes.append(Difference(path, "missing"))
        elif path not in old:
            changes.append(Difference(path, "added"))
        elif old[path] != new[path]:
            changes.append(Difference(path, "changed"))
    return tuple(changes)


def base_of(python: str) -> tuple[str, ...]:
    """Ask an interpreter for the paths of its program and its libraries, and return these paths.

    Some of the library paths may refer to folders. Raise `BuildError` if the interpreter does not
    answer.
    """
    # -S: no sitecustomize adds to the path.
    done = process.run([python, "-I", "-S", "-c", _BASE_QUESTION], timeout=_SECONDS)
    try:
        paths = decoding.from_json(done.stdout, list[str])
    except ValueError as error:
        raise BuildError(
            f"{python}: the interpreter does not report the path of libpython: {done.last_words}",
            "Set python: in envbuilder.yaml to another version.",
        ) from error
    parents = tuple(f"{path}/" for path in paths)
    return tuple(path for path in paths if not path.startswith(parents))


def close(
    prefix: Path,
    facts: dict[str, Any],
    base: Sequence[str] = (),
    store: Store | None = None,
) -> None:
    """Write the integrity manifest of a finished environment, and a marker that contains `facts`.

    If the environment is based on an interpreter outside the environment, `base` contains the paths
    that `base_of` returned for that interpreter, and `store` caches the hashes of the interpreter's
    files. Verification does not rely on the cached hashes: it reads the files.
    """
    (prefix / FILES).parent.mkdir(parents=True, exist_ok=True)
    # What was just linked is neither looked at nor read again.
    linked = shared(prefix)
    folders = _folders(linked)
    packages = (path for path in folders if path.endswith(_PACKAGES))
    identities = tuple(_entries(prefix, OURS.union(packages, (file.path for file in linked))))
    entries = [*hashed(prefix, identities), *hashed(prefix, tuple(_outside(base)), store)]
    walked = {entry.path for entry in identities}
    entries += (Entry(path, "folder") for path in folders - walked)
    sizes = []
    for entry in identities:
        if entry.kind != "folder":
            size = int(entry.content.split()[1]) if _is_file(entry) else 0
            sizes.append((entry.path, size))
    for file in linked:
        kind: Literal["file", "executable"] = "executable" if file.executable else "file"
        entries.append(Entry(file.path, kind, file.sha256))
        sizes.append((file.path, file.size))
    entries.sort()
    text = listed(entries)
    (prefix / FILES).write_text(text)
    digests = {"digest": _portable(prefix, entries), "tree": _digest(text)}
    marker = {
        **facts,
        "base": list(base),
        **digests,
        "shared": len(linked),
        "landmarks": _landmarks(sizes),
    }
    (prefix / MARKER).write_text(json.dumps(marker, indent=1) + "\n")


def _folders(linked: Iterable[SharedFile]) -> set[str]:
    """Return all folders above the linked files, except folders of bytecode."""
    folders: set[str] = set()
    for file in linked:
        folder = file.path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return {path for path in folders if path.rpartition("/")[2] != BYTECODE}


def _landmarks(sizes: Iterable[tuple[str, int]]) -> list[str]:
    """Return the paths of the interpreter and of each package's largest file.

    `sizes` lists all files as pairs of path and size in bytes.
    """
    largest: dict[str, tuple[int, str]] = {}
    landmark = ""
    for path, size in sorted(sizes):
        if f"/{BYTECODE}/" in path:  # people remove bytecode
            continue
        if not path.startswith(f"{landmark}/"):
            matched = _LANDMARK.match(path)
            landmark = matched[0] if matched else ""
        if landmark:
            largest[landmark] = max(largest.get(landmark, (0, "")), (size, path))
    return sorted(path for _, path in largest.values())


def damage(prefix: Path, metadata: Mapping[str, Any]) -> str:
    """Return a message if a file that an environment needs is missing, else an empty string.

    `metadata` is the content of the environment's marker. Because this function runs before every
    command, it only checks that certain files exist, without reading them. A link to a missing
    interpreter is treated as a missing file.
    """
    for path in metadata.get("landmarks", ()):
        if not os.path.exists(f"{prefix}/{path}"):  # noqa: PTH110 (a third of the time)
            return f"{prefix} is damaged: {path} is missing"
    return ""


def altered(prefix: Path) -> str:
    """Return a message if a file shared with other environments was changed in place, else "".

    Such a file must be restored from its wheel. A file that was replaced is no longer shared, and
    verification reports it. Changes cannot be detected without the build's records of the shared
    files, so the message also reports missing records.
    """
    records = shared(prefix)
    built = marker(prefix).get("shared", len(records))  # earlier versions did not count them
    changed = [] if len(records) == built else [SHARED]
    for file in records:
        with suppress(OSError):
            status = os.lstat(f"{prefix}/{file.path}")
            if status.st_ino == file.inode and not file.is_same(status):
                changed.append(file.path)
    return f"{prefix} was changed since it was built: {first(changed, SHOWN)}" if changed else ""


def portable_digest(prefix: Path) -> str:
    """Return the digest of an environment's current files, except those that depend on the host.

    Raise `OSError` if a file cannot be read.
    """
    return _portable(prefix, read_tree(prefix, OURS))


def _portable(prefix: Path, entries: Iterable[Entry]) -> str:
    # A list of exceptions that is itself an exception would let any file be changed.
    bound = host_bound(prefix) - {PLACED}
    portable = [e for e in entries if not e.path.startswith("/") and e.path not in bound]
    # Bytecode depends on the interpreter's patch release.
    return tree_digest(e for e in portable if f"/{BYTECODE}/" not in e.path)


def bind(prefix: Path, paths: Iterable[str]) -> None:
    """Record additional files that contain the environment's final location.

    This must be called before `close`.
    """
    (prefix / PLACED).parent.mkdir(parents=True, exist_ok=True)
    (prefix / PLACED).write_text("\n".join([*sorted({*_placed(prefix), *paths}), ""]))


def host_bound(prefix: Path) -> frozenset[str]:
    """Return the paths of an environment's host-dependent files, relative to its prefix."""
    return HOST_BOUND.union(_placed(prefix))


def _placed(prefix: Path) -> list[str]:
    try:
        return (prefix / PLACED).read_text().splitlines()
    except FileNotFoundError:
        return []


def marker(prefix: Path) -> dict[str, Any]:
    """Return an environment's build metadata.

    Return an empty dictionary if there is no finished environment.
    """
    try:
        metadata = json.loads((prefix / MARKER).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(metadata, dict):
        return {}
    for key in ("base", "landmarks"):
        if not isinstance(metadata.get(key, []), list):
            return {}
    return metadata


def is_sealed(prefix: Path) -> bool:
    """Return whether a folder is empty or was made by envbuilder, even if it has changed since."""
    return (prefix / MARKER).is_file() or (prefix / OWN).is_dir() or not any(prefix.iterdir())


class State(Struct, frozen=True):
    """The state of an environment at one moment: the identities and hashes of its files."""

    identities: tuple[Entry, ...]
    contents: tuple[Entry, ...]


def require_unchanged(prefix: Path, python: str) -> State:
    """Raise `VerifyError` if an environment or its base interpreter changed since the build.

    If neither changed, return the current state, which can be passed to `require_untouched` later.
    `python` is the path of the environment's interpreter, relative to the prefix.
    """
    what = f"{prefix} was changed after the build"
    with _reading(prefix, python, what):
        # First the identities: a file that changes while others are hashed is noticed later.
        before = _walk(prefix)
        entries = hashed(prefix, before)
    if tree_digest(entries) == marker(prefix).get("tree"):
        return State(before, entries)
    try:
        built = parsed((prefix / FILES).read_text())
    except (OSError, ValueError):
        built = ()
    changed = differences(built, entries) if built else ()
    if changed and all(d.path.startswith("/") for d in changed):
        what = "the base interpreter has changed since the build, perhaps by an upgrade"
    raise _error(f"{what}: {_named(changed)}", prefix, python)


def require_untouched(prefix: Path, python: str, before: State) -> None:
    """Raise `VerifyError` if a file has changed since `require_unchanged` returned `before`.

    A file that was changed and then restored is treated as changed. If another environment added or
    removed a hard link to a file, the file's ctime changes. In that case, the file is read again.
    """
    what = f"{prefix} was changed while it was used"
    identities = {entry.path: entry for entry in before.identities}
    contents = {entry.path: entry for entry in before.contents}
    with _reading(prefix, python, what):
        now = _walk(prefix)
        linked = tuple(e for e in now if _was_linked(identities.get(e.path, e), e))
        same = {entry.path for entry in hashed(prefix, linked) if contents[entry.path] == entry}
        now = tuple(identities[entry.path] if entry.path in same else entry for entry in now)
        changed = differences(before.identities, now)
    if changed:
        raise _error(f"{what}: {_named(changed)}", prefix, python)


def _was_linked(before: Entry, now: Entry) -> bool:
    """Return whether a file gained or lost a hard link and shows no other evidence of a change."""
    old = before.content.split()
    new = now.content.split()
    return _is_file(now) and old[:3] == new[:3] and old[4:] != new[4:]


def _walk(prefix: Path) -> tuple[Entry, ...]:
    return walk(prefix, OURS, map(str, marker(prefix).get("base", ())))


@contextmanager
def _reading(prefix: Path, python: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error(
            f"{what}: {error.filename}: cannot be read: {error.strerror}", prefix, python
        ) from error


def _named(changed: Sequence[Difference]) -> str:
    return first([f"{d.path} ({d.how})" for d in changed], SHOWN) or f"its list of files ({FILES})"


def _error(message: str, prefix: Path, python: str) -> VerifyError:
    return VerifyError(
        message,
        (
            Hint("Build it again", ("build", "--rebuild")),
            Hint("To verify it without rebuilding", ("verify", "--python", str(prefix / python))),
        ),
    )
