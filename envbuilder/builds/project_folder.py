"""The folder `.envbuilder` in a project, and the user's own folder of files for commands.

The project itself contains only a link to each environment, `.envbuilder/NAME`, for use by editors.
The files that commands import or write (the installed project's metadata and commands, and the
startup hooks) are in the user's own folder. Therefore, no other user can change them, the project
may be read-only, and commands that run at the same time do not disturb each other. Containers mount
the user's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from envbuilder import __version__
from envbuilder.core import files, resources, types
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.core.settings import DEFAULT, PROJECT_FILE, Settings, require_writable
from envbuilder.project import names, package

FOLDER = ".envbuilder"
RUNS = "runs"
"""Name of the user's own folder of files for commands."""
PROGRAMS = f"{package.FOLDER}/bin"
_HOOK = Path(__file__).with_name("inside") / "sitecustomize.py"
"""Path of the startup hook's source code, which works in any interpreter."""


# --- in the project


def require_own(folder: Path) -> None:
    """Raise `InvalidError` if `.envbuilder` in `folder` is a link, or if another user controls it.

    There is no check if `folder` itself belongs to another user, because nothing is written there
    in that case.
    """
    path = folder / FOLDER
    trusted = files.current_trust()
    if not os.path.lexists(path) or folder.stat().st_uid not in trusted.uids:
        return
    reason = "it is a link" if path.is_symlink() else files.objection(path, trusted)
    if reason:
        raise InvalidError(
            f"{path} is not used: {reason}",
            "Remove it, or move it away. It contains only links to environments, which envbuilder"
            " recreates.",
        )


def link(settings: Settings, prefix: Path) -> str:
    """Create the link `.envbuilder/ENVIRONMENT` in the project, which points to `prefix`.

    Return a message if that fails, else an empty string. The environment works even without the
    link. Do nothing outside projects, or as root in another user's project, since that user could
    not remove the link.
    """
    if settings.project is None or settings.definition is None:
        return ""
    if os.geteuid() == 0 and settings.project.stat().st_uid != 0:
        return ""
    folder = settings.project / FOLDER
    link_path = folder / settings.environment
    if link_path.is_symlink() and link_path.readlink() == prefix:
        return ""
    if folder.is_symlink() or (link_path.exists() and not link_path.is_symlink()):
        return f"{link_path}: left unchanged, because envbuilder did not make it"
    new = folder / f".{settings.environment}.{os.urandom(6).hex()}"
    try:
        if not folder.exists():
            files.write(folder / ".gitignore", b"*\n")
        new.symlink_to(prefix)
        new.replace(link_path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        return f"{link_path}: cannot be written: {error.strerror or error}"
    return ""


# --- in the user's own folder


def runs_folder(settings: Settings) -> Path:
    """Return the user's own folder of files for commands.

    This folder is in the data folder, or in the cache folder if the data folder is not writable.
    Raise `InvalidError` if neither is writable, or if the returned folder's path cannot be part of
    `PYTHONPATH`.
    """
    folder = settings.data_dir / RUNS
    try:
        require_writable(folder)
        is_writable = os.access(folder, os.W_OK)
    except InvalidError:
        is_writable = False
    if not is_writable:
        folder = require_writable(settings.cache_dir / RUNS)
    if os.pathsep in str(folder):
        raise InvalidError(
            f"{folder}: the path of a folder on PYTHONPATH cannot contain {os.pathsep!r}",
            "Set ENVBUILDER_DATA_DIR to another folder.",
        )
    return folder


def lay(settings: Settings, texts: Mapping[str, str]) -> Path:
    """Write files to a folder named after a digest of their contents, and return that folder.

    `texts` maps relative paths to contents. The folder contains no other files and never changes,
    so concurrent commands can share it. Raise `InvalidError` if the folder is not writable.
    """
    return _lay(settings, texts, lambda: texts)


def _lay(
    settings: Settings, inputs: Mapping[str, object], make: Callable[[], Mapping[str, str]]
) -> Path:
    """Write files like `lay`, but name their folder after a digest of `inputs`.

    Return the folder. `make` returns the files' contents by relative path. `make` is called only if
    there is no folder for `inputs` yet.
    """
    digest = hashlib.sha256(msgspec.json.encode(sorted(inputs.items()))).hexdigest()
    above = runs_folder(settings)
    folder = above / digest[:32]
    with writing(folder):
        if folder.is_dir():
            return folder
        with TemporaryDirectory(dir=above, prefix="new_") as new_folder:
            new = Path(new_folder, "new")
            for name, text in make().items():
                files.write(new / name, text.encode(), 0o777 if text.startswith("#!") else 0o666)
            open_to_all(new)
            try:
                new.rename(folder)
            except OSError:
                if not folder.is_dir():  # another command has laid it meanwhile
                    raise
    return folder


def lay_hook(settings: Settings, locked: Iterable[str], *, in_image: bool = False) -> Path | None:
    """Write the startup hook for all Python interpreters, and return the folder that contains it.

    Return None if the folder is not writable. In a project, the hook explains missing modules and
    libraries. `locked` contains the names of the packages in the lock, which the hook never
    suggests adding.
    """
    hook = {_HOOK.name: _HOOK.read_text(encoding="utf-8")}
    with suppress(InvalidError):
        if settings.definition is None:
            return lay(settings, hook)
        packages = sorted(locked)
        other = () if settings.environment == DEFAULT else ("--environment", settings.environment)
        facts = {
            "project": str(settings.project),
            "excluded": _excluded(settings),
            "locked": packages,
            "sources": sorted(names.WITH_FRAMEWORK),
            "add": Hint("", ("add", *other)).command_line(),
        }

        def texts() -> dict[str, str]:
            from envbuilder.packages.python import libraries

            facts["packages"] = names.known_modules()
            facts["libraries"] = {
                library: libraries.bringing([library], packages, in_image=in_image)
                for library in libraries.system_libraries().debian
            }
            return {**hook, "facts.json": json.dumps(facts)}

        # To read the tables takes as long as all else that a command does with its environment.
        tables = sorted((resources.profiles_dir() / "names").glob("*.*"))
        of_tables = [__version__, *map(files.file_sha256, tables)]
        return _lay(settings, {**hook, **facts, "image": in_image, "tables": of_tables}, texts)
    return None


def _excluded(settings: Settings) -> dict[str, str]:
    """Return the packages that the project's file excludes, mapped to the comment on their line.

    All packages have the same comment, which is in parentheses. The comment is an empty string if
    the line has none.
    """
    if settings.project is None or settings.definition is None:
        return {}
    with suppress(InvalidError):
        text = files.read_text(settings.project / PROJECT_FILE)
        comment = re.search(r"^exclude:[^\n#]*# *([^\n]+)", text, re.MULTILINE)
        comment_text = f" ({comment[1].rstrip('. ')})" if comment else ""
        return dict.fromkeys(map(types.canonical, settings.definition.exclude), comment_text)
    return {}


@contextmanager
def temporary(above: Path) -> Iterator[Path]:
    """Yield a new folder for a single command, and remove the folder afterwards.

    First remove any folders that killed commands left behind. Raise `InvalidError` if the folder is
    not writable.
    """
    from filelock import FileLock

    with suppress(OSError):
        for lock in above.glob("*.lock"):
            with suppress(TimeoutError), FileLock(lock, timeout=0):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()
    folder = above / os.urandom(6).hex()
    lock = folder.with_suffix(".lock")
    with ExitStack() as held:
        with writing(folder):
            held.enter_context(FileLock(lock))
            folder.mkdir()
        held.callback(lock.unlink, missing_ok=True)
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def writing(folder: Path) -> AbstractContextManager[None]:
    """Return a context manager that turns errors when writing to `folder` into `InvalidError`."""
    return files.explained(
        folder, hint="Set ENVBUILDER_DATA_DIR to a folder you can write to.", done="written"
    )


def open_to_all(folder: Path) -> None:
    """Let all users read a folder regardless of the umask.

    A container may run as another user.
    """
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
