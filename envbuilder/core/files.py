"""Read and write files safely, and decide whose files are trusted.

A file is first written under a temporary name in the same folder. A single rename then gives it its
final name. The temporary file is never opened through a link or over another user's file, since
others may be able to write to the folder.

A marker file in a folder records that envbuilder created the folder. A folder that already existed
gets no marker, so its contents are never treated as envbuilder's.

The user's own files and root's files are trusted, as with git's `safe.directory`. A project file
specifies package indexes, base images and profiles. If another user put a project file into a
parent of the working folder, the file would determine what this user, or root, installs and runs.

This module is long because it contains all code that reads and writes files, and all decisions
about trust in them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, resources
from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    Hint,
    InvalidError,
    escaped,
    make_room,
)
from envbuilder.core.text import binary_size

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PRIVATE = 0o600
"""File mode for files that contain information about a user or a machine."""
MARKER = ".made-by-envbuilder"
_SIGNATURE = b"envbuilder made this folder\n"
_CONTENT = _SIGNATURE + (
    b"The command `envbuilder clean` removes what envbuilder put into it.\n"
    b"Remove this file, and it leaves the folder alone.\n"
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_T = TypeVar("_T")
_LARGEST = 64 << 20
"""Maximum size in bytes of a marker or a cache entry.

The size is limited because other users may be able to write to a shared folder.
"""
_BLOCK = 1 << 18
"""Number of bytes read from a file at a time."""
LARGEST_TEXT = 1 << 20
"""Maximum size in bytes of a text file of a user or a repository.

The largest profile has 1,800 bytes.
"""
TRUSTED_VARIABLE = "ENVBUILDER_TRUSTED_FOLDERS"
"""Environment variable that lists folders whose files are trusted, whoever owns them.

The folders are separated as in PATH.
"""


@contextmanager
def explained(
    path: Path,
    failure: type[EnvbuilderError] = InvalidError,
    hint: str | Hint = "",
    *,
    done: str = "read",
) -> Iterator[None]:
    """Convert an `OSError` to `failure`, whose message says what could not be done and why.

    `done` is the past participle in the message, such as `read` in "PATH: cannot be read".
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise failure(f"{path}: cannot be {done}: {reason}", hint) from error


def read(path: Path, limit: int, *, pipes: bool = False) -> bytes:
    """Read a regular file. Raise `OSError` if it is not one or has more than `limit` bytes.

    Set `pipes` for files that the user has named, so that pipes and devices are read as well.
    Otherwise they are refused, since opening a pipe blocks until another process writes to it.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK)
    with open(os.open(path, flags), "rb") as stream:  # noqa: PTH123 (a descriptor)
        if not pipes and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {binary_size(limit)}", str(path))
    return content


def read_named(path: Path, limit: int, hint: str | Hint = "") -> bytes:
    """Read a file or pipe that the user has named. Raise `InvalidError` if it cannot be read."""
    with explained(path, hint=hint):
        return read(path, limit, pipes=True)


def read_text(path: Path) -> str:
    """Read a UTF-8 text file of limited size. Raise `InvalidError` if it cannot be read."""
    with explained(path):
        content = read(path, LARGEST_TEXT)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"{path}:{line}: not UTF-8 text", "Save it as UTF-8.") from error


def write(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file atomically, creating its folder if needed.

    If an `OSError` is raised, the old file is unchanged. `mode` is subject to the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with staged(path, content, mode) as temporary:
        temporary.replace(path)


class _Parsed(Struct, frozen=True):
    """The data of a YAML file, in the form in which it is cached in a JSON file."""

    of: str
    """Digest of the YAML file's text combined with the parser's source code."""
    data: dict[str, Any]
    lines: tuple[tuple[tuple[str, ...], int], ...] = ()
    """The line of each key and item. The lines are not stored for profiles shipped with
    envbuilder."""


def parse_shipped(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of a profile file and return its mapping, as `parse_yaml` does.

    The data of a profile that is shipped with envbuilder is cached next to the profile if that
    folder is writable, just as Python caches compiled modules.
    """
    if not path.is_relative_to(resources.profiles_dir()):
        return decoding.parse_yaml(text, str(path))
    return parse_cached(text, path, path.parent / "__pycache__" / f"{path.name}.json")


def parse_cached(text: str, path: Path, copy: Path, *, is_users: bool = False) -> dict[str, Any]:
    """Parse a file's text and return its mapping, as `parse_yaml` does.

    The result is cached in the file `copy`. `is_users` means that the file belongs to the user. In
    that case, the line of each key is cached too, and other users cannot read the copy.
    """
    parser = Path(decoding.__file__).with_name("yaml_files.py").read_bytes()
    digest = hashlib.sha256(parser + text.encode()).hexdigest()
    with suppress(OSError, msgspec.MsgspecError):
        parsed = decoding.from_json(read(copy, _LARGEST), _Parsed)
        if parsed.of == digest:
            if is_users:
                decoding.LINES[text] = dict(parsed.lines)
            return parsed.data
    data = decoding.parse_yaml(text, str(path))
    lines = (*decoding.lines(text).items(),) if is_users else ()
    content = msgspec.json.encode(_Parsed(digest, data, lines))
    # JSON has no days.
    if not sys.dont_write_bytecode and decoding.from_json(content, _Parsed).data == data:
        with suppress(OSError):
            write(copy, content, PRIVATE if is_users else 0o666)
    return data


@contextmanager
def staged(
    path: Path, content: bytes, mode: int = 0o666, final_mode: int | None = None
) -> Iterator[Path]:
    """Yield the path of a new temporary file next to `path` that contains `content`.

    The caller renames the temporary file. If the caller fails, the file is removed. `mode` is
    subject to the umask, but `final_mode` is not.
    """
    temporary = path.with_name(f".{path.name}.{int.from_bytes(os.urandom(6))}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            if final_mode is not None:
                os.fchmod(out.fileno(), final_mode)
        yield temporary
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def save(
    path: Path,
    content: bytes,
    failure: type[EnvbuilderError],
    hint: str | Hint,
) -> Path:
    """Write a file as `write` does, and return its path. Raise `failure` instead of `OSError`."""
    with explained(path, failure, hint, done="written"):
        write(path, content)
    return path


def replace_all(contents: Mapping[Path, bytes], hint: str | Hint) -> None:
    """Replace files in the given order, creating missing folders. Each file keeps its mode.

    If a file cannot be written, restore all files and raise `InvalidError` with `hint`. The files
    are also restored after any signal except SIGKILL.
    """
    path = Path()
    try:
        with ExitStack() as stack:
            parts: dict[Path, Path] = {}
            for path, content in contents.items():
                stack.enter_context(_new_folder(path.parent))
                mode = _mode(path)
                first = 0o666 if mode is None else PRIVATE
                parts[path] = stack.enter_context(staged(path, content, first, mode))
            for path, temporary in parts.items():
                stack.enter_context(_replaced(path, temporary))
    except OSError as error:
        raise InvalidError(f"{path}: cannot be written: {error.strerror or error}", hint) from error


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create a folder and its missing parents. If the caller fails, remove the new folders."""
    created = [missing for missing in (folder, *folder.parents) if not missing.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for parent in created:
                parent.rmdir()
        raise


@contextmanager
def _replaced(path: Path, temporary: Path) -> Iterator[None]:
    """Rename `temporary` to `path`. If the caller fails, restore the earlier file at `path`."""
    mode = _mode(path)
    earlier: bytes | None = None
    with suppress(OSError):
        earlier = path.read_bytes()
    try:
        temporary.replace(path)
        yield
    except BaseException:
        with suppress(OSError):
            if mode is None:
                path.unlink()
            elif earlier is not None:
                with staged(path, earlier, PRIVATE, mode) as restored:
                    restored.replace(path)
        raise


def _mode(path: Path) -> int | None:
    """Return the mode of a file, or None if the file does not exist."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def full_or_broken(error: OSError, path: Path) -> BuildError:
    """Return a `BuildError` for a failed write.

    If the disk is full, the hints of the error say how to free space.
    """
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return BuildError(
            f"no space left on the disk of {path.parent}",
            (Hint("Downloads so far are kept."), *make_room("ENVBUILDER_CACHE_DIR")),
        )
    return BuildError(
        f"{path}: {error.strerror or error}", "Check that the folder exists and is writable."
    )


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield an open temporary file that replaces the file at `path` when the caller is done.

    If the caller fails, the temporary file is removed. Callers write to it with `write_all`. This
    function is for large files: a temporary file left behind by a killed process is overwritten, so
    such files do not accumulate. Raise `BuildError` if another process is writing to the temporary
    file, or if its name is taken by anything else, such as a link or another user's file. Raise
    `OSError` if the disk is full.
    """
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered: a full disk is reported by the write, not when the file is closed.
    with open(part, "wb", buffering=0, opener=lambda *_: _opened(part)) as out:
        if not _locked(out.fileno(), part):
            raise BuildError(f"{path}: another process is writing to this file")
        try:
            out.truncate(0)
            yield out
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def write_all(out: IO[bytes], data: bytes) -> None:
    """Write all of `data` to an unbuffered file. A single `write` may write only part of it."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def is_own(status: os.stat_result) -> bool:
    """Return whether this is a regular file of the current user with a single hard link."""
    owned = status.st_uid == os.geteuid() and status.st_nlink == 1
    return owned and stat.S_ISREG(status.st_mode)


def _opened(part: Path) -> int:
    """Open a partial file and return its descriptor.

    The file is created, unless an earlier process of this user left it behind. Raise `BuildError`
    if the name is taken by anything else, such as a link or another user's file.
    """
    try:
        return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o666)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(part, os.O_WRONLY | _SAFELY)
    except FileNotFoundError:  # its writer has just finished
        return _opened(part)
    except OSError as error:  # a link, a folder, a pipe, or another user's
        raise _in_the_way(part) from error
    if not is_own(os.fstat(descriptor)):
        os.close(descriptor)
        raise _in_the_way(part)
    return descriptor


def _locked(descriptor: int, part: Path) -> bool:
    """Lock a partial file.

    Return whether the lock was acquired and the file still has its name.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), part.lstat())
    except OSError:
        return False


def _in_the_way(part: Path) -> BuildError:
    return BuildError(
        f"{part}: already exists and is not a regular file that you own",
        "Remove it, or write to a folder that nobody else can write to.",
    )


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content."""
    digest = hashlib.sha256()
    # `hashlib.file_digest` clears a buffer of 256 KB for each of an environment's 20,000 files.
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def cached(entry: Path, kind: type[_T], make: Callable[[], _T]) -> _T:
    """Return the value cached in the file `entry`.

    If there is none, call `make` and cache its result.

    A cached file that is damaged, or that contains a value of another type, is treated as missing.
    If the file cannot be written (full disk, read-only folder), every call makes the value again.
    """
    with suppress(OSError, ValueError, RecursionError):
        digest, _, content = read(entry, _LARGEST).partition(b"\n")
        if digest.decode() == f"sha256:{hashlib.sha256(content).hexdigest()}":
            return decoding.from_json(content, kind)
    value = make()
    content = msgspec.json.encode(value)
    with suppress(OSError):
        write(entry, f"sha256:{hashlib.sha256(content).hexdigest()}\n".encode() + content)
    return value


def ensure_folder(folder: Path, *, marked: bool = True) -> Path:
    """Return the folder, creating it if it is missing.

    A new folder gets a marker, unless `marked` is False because its contents have markers of their
    own. Only this user can access the new folder, unless its parent has a marker. In that case, the
    new folder gets the mode of its parent, which the user may have opened to others. The mode of an
    existing folder is never changed. Raise `OSError` if the folder cannot be created.
    """
    for above in reversed([p for p in folder.parents if not p.exists()]):
        above.mkdir(mode=0o700, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return folder
    try:
        if is_marked(folder.parent):
            folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode) & ~0o022)
        if marked:
            mark_folder(folder)
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        raise
    return folder


def folder_identity(folder: Path) -> str:
    """Return a hexadecimal hash of a folder's path, which identifies the folder across calls."""
    return hashlib.sha256(os.fsencode(folder)).hexdigest()


def mark_folder(folder: Path) -> None:
    """Write the marker into a new folder. Raise `OSError` if the disk is full."""
    write(folder / MARKER, _CONTENT)


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder that is not a symbolic link."""
    return path.is_dir() and not path.is_symlink()


def is_marked(folder: Path) -> bool:
    """Return whether a folder has envbuilder's marker. A marker that is a link is ignored."""
    marker = folder / MARKER
    try:
        return not marker.is_symlink() and read(marker, _LARGEST).startswith(_SIGNATURE)
    except OSError:  # there is none, or it is a folder or a device
        return False


def remove(path: Path, root: Path, aside: str = "") -> None:
    """Remove a file, link or folder below `root`. Raise `OSError` if it cannot be removed.

    A folder that contains a mount point is left untouched, because the mounted files belong
    elsewhere.

    No component of the path below `root` may be a link. Each folder on the path is opened relative
    to its parent's descriptor, so that none can be replaced by a link in the meantime. Links in a
    removed folder are removed, but their targets are not. The marker is removed last, so that a
    folder left behind by a killed process still has it. If `aside` is given, the folder is first
    marked and renamed to `aside`, so that a partially removed folder is never used.
    """
    import shutil

    *above, name = path.relative_to(root).parts
    top = root.parent.resolve() / root.name
    with ExitStack() as opened:
        parent = _open_folder(str(top), None, opened)
        for component in above:
            parent = _open_folder(component, parent, opened)
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        if mounted := mounts_below(top.joinpath(*above, name), mount_table()):
            raise OSError(errno.EBUSY, f"a file system is mounted at {mounted[0]}")
        folder = _open_folder(name, parent, opened)
        if aside:
            marker = os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, marker)
            os.write(marker, _CONTENT)
            with suppress(OSError):  # a killed build left a folder of that name
                os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                name = aside
        for child in sorted(os.listdir(folder), key=lambda n: n == MARKER):  # noqa: PTH208 (a descriptor)
            if stat.S_ISDIR(os.stat(child, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(child, dir_fd=folder)
            else:
                os.unlink(child, dir_fd=folder)
        os.rmdir(name, dir_fd=parent)


def mounts_below(folder: Path, table: str) -> list[str]:
    """Return the mount points below a folder. `table` has the format of `/proc/self/mountinfo`."""
    points = []
    for line in table.split("\n"):
        if line.count(" ") > 4:
            point = line.split(" ", 5)[4]
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
            if point.startswith(f"{folder}/"):
                points.append(point)
    return points


def mount_table() -> str:
    """Return the text of the system's mount table, or "" if the system does not provide one."""
    with suppress(OSError):
        return os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return ""


def _open_folder(name: str, within: int | None, opened: ExitStack) -> int:
    descriptor = os.open(name, _FOLDER, dir_fd=within)
    opened.callback(os.close, descriptor)
    return descriptor


class Look(Protocol):
    """Function that looks up the status of a path, on this machine or in a test."""

    def __call__(self, path: Path, *, follow: bool) -> os.stat_result | None:
        """Return the status of a path, or None if the path does not exist.

        If the path is a link and `follow` is set, return the status of the link's target.
        """


class Trust(Struct, frozen=True, kw_only=True):
    """The users and folders whose files are trusted."""

    uids: frozenset[int]
    folders: frozenset[Path] = frozenset()
    """Folders whose files are trusted, whoever owns them."""


def look(path: Path, *, follow: bool) -> os.stat_result | None:
    """Return the status of a path on this machine, or None if it cannot be read."""
    try:
        return path.stat(follow_symlinks=follow)
    except (OSError, ValueError):
        return None


def trust(environ: Mapping[str, str], uid: int) -> Trust:
    """Return the users and folders whose files the user with the id `uid` trusts.

    The users are this user, root and, under sudo, the user who called sudo. The folders are the
    absolute paths in the environment variable `TRUSTED_VARIABLE`.
    """
    uids = {0, uid}
    behind = environ.get("SUDO_UID", "")
    if uid == 0 and behind.isascii() and behind.isdecimal() and len(behind) < 11:
        uids.add(int(behind))
    folders = map(Path, environ.get(TRUSTED_VARIABLE, "").split(os.pathsep))
    return Trust(uids=frozenset(uids), folders=frozenset(f for f in folders if f.is_absolute()))


def current_trust(environ: Mapping[str, str] = os.environ) -> Trust:
    """Return the users and folders whose files are trusted by the user of this process."""
    return trust(environ, os.geteuid())


def folders_above(start: Path, home: Path | None, look: Look = look) -> Iterator[Path]:
    """Yield a folder and its parents, up to the home folder or the root of the file system."""
    at_home = look(home, follow=True) if home else None
    device = None
    for folder in (start, *start.parents):
        facts = look(folder, follow=True)
        if facts is None or device not in {None, facts.st_dev}:
            return
        device = facts.st_dev
        yield folder
        if at_home and (facts.st_dev, facts.st_ino) == (at_home.st_dev, at_home.st_ino):
            return


def objection(path: Path, trusted: Trust, look: Look = look) -> str:
    """Return how another user can control the content of a path, or "" if no other user can.

    The path and its folder are both checked, since the owner of a folder can replace its contents.
    The target of a link is checked as well as the link itself. Write access for groups is ignored,
    because the members of a group were chosen deliberately.
    """
    if not trusted.folders.isdisjoint((path, path.parent)):
        return ""
    modes = _keeps_modes(path, look)
    above = _objection(path.parent, trusted, look, modes=modes, sticky=True)
    return above or _objection(path, trusted, look, modes=modes)


def require_own(path: Path, trusted: Trust | None = None) -> None:
    """Raise `InvalidError` if another user controls the content of a path or of anything below it.

    A missing path is accepted.
    """
    path = path.absolute()
    trusted = trusted or current_trust()
    if not os.path.lexists(path) or not trusted.folders.isdisjoint((path, *path.parents)):
        return
    modes = _keeps_modes(path, look)
    below = (_objection(entry, trusted, look, modes=modes) for entry in path.rglob("*"))
    if reason := objection(path, trusted, look) or next(filter(None, below), ""):
        raise InvalidError(
            f"{path} is not used: {reason}",
            "Take ownership of it, or move it away. To trust it as it is, set"
            f" {TRUSTED_VARIABLE}={path if path.is_dir() else path.parent}",
        )


def require_unlinked(folder: Path) -> None:
    """Raise `InvalidError` if the folder is a symbolic link.

    Files would otherwise be written to the target of the link.
    """
    if folder.is_symlink():
        raise InvalidError(
            f"{folder} is a symbolic link, but locks are written only to folders in the project",
            "Replace it with a folder.",
        )


def exposure(folder: Path, trusted: Trust, look: Look = look) -> str:
    """Return how other users can add files to one of envbuilder's folders, or "" if they cannot."""
    if not trusted.folders.isdisjoint(folder.parents) or not _keeps_modes(folder, look):
        return ""
    return objection(folder, trusted, look)


def _keeps_modes(path: Path, look: Look) -> bool:
    """Return whether the file system that contains a path stores file modes.

    Windows drives in WSL, FAT and some shared folders show every path, including their own root, as
    writable by everybody. On such file systems, modes have no meaning.
    """
    device = None
    root = None
    itself = look(path, follow=False)
    is_folder = itself is not None and stat.S_ISDIR(itself.st_mode)
    for above in (path, *path.parents) if is_folder else path.parents:
        facts = look(above, follow=True)
        if facts is None or device not in {None, facts.st_dev}:
            break
        device = facts.st_dev
        root = facts
    return root is None or not _open_to_all(root)


def _open_to_all(facts: os.stat_result, *, sticky: bool = True) -> bool:
    sticky_folder = sticky and stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    return bool(facts.st_mode & stat.S_IWOTH and not sticky_folder)


def _objection(path: Path, trusted: Trust, look: Look, *, modes: bool, sticky: bool = False) -> str:
    """Return why a path is not trusted, or "" if it is. Both a link and its target must be trusted.

    With `sticky`, accept a folder in which every user can add files, provided that users can
    replace only their own files.
    """
    itself = look(path, follow=False)
    if itself is None:
        return ""
    linked = look(path, follow=True) if stat.S_ISLNK(itself.st_mode) else itself
    for facts in filter(None, (itself, linked)):
        if facts.st_uid not in trusted.uids:
            return f"{path} belongs to {_user(facts.st_uid)}, who is neither you nor root"
    if modes and linked is not None and _open_to_all(linked, sticky=sticky):
        return f"{path} is writable by every user"
    return ""


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (KeyError, OverflowError):
        return f"uid {uid}"


def ignored_note(folder: Path, reason: str) -> str:
    """Return a message that says why a project's settings and profiles are ignored."""
    return escaped(
        f"ignored the settings and profiles in {folder}: {reason}. To use them:"
        f" {TRUSTED_VARIABLE}={folder}"
    )
