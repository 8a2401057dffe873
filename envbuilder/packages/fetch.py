"""Locate the files of a lock at the sources that the user configured, and download them.

Wheels in a local find-links folder are taken from there. uv locates the other wheels, because it
knows the user's indexes, tokens and proxies. It returns one URL per file. Every download is checked
against the lock, no matter which server the file was downloaded from.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from envbuilder.core import pip, process, types
from envbuilder.core.errors import (
    BuildError,
    ChangedFileError,
    Hint,
    ToolError,
    WrongHashError,
    counted,
    first,
)
from envbuilder.core.files import file_sha256, full_or_broken
from envbuilder.core.http import (
    OtherSizeError,
    UnavailableError,
    download,
    host_of,
    open_session,
)
from envbuilder.core.settings import Settings, require_writable
from envbuilder.packages.python import indexes
from envbuilder.packages.store import Store, download_room, require_rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.core.console import Progress
    from envbuilder.core.http import Session
    from envbuilder.profiles.lock import File, Target


def find_links() -> tuple[Path, ...]:
    """Return the existing local wheel folders from the configuration of uv and pip."""
    found = map(pip.local_folder, pip.links(pip.sources(), os.environ))
    return tuple(folder for folder in found if folder is not None and folder.is_dir())


class Place(Struct, frozen=True, kw_only=True):
    """A location that lists packages.

    It is either an index with one page per distribution, or a single flat page.
    """

    url: str
    """The location's URL, which may contain credentials, or the path of a folder on this
    machine."""
    flat: bool = False

    def page(self, name: str) -> str:
        """Return the URL of the page that lists the files of a package."""
        return self.url if self.flat else f"{self.url.rstrip('/')}/{name}/"


def places() -> tuple[Place, ...]:
    """Return all locations in which uv searches for the user's packages.

    This runs uv, because only uv knows all of its settings, including the default index. The result
    is cached until an environment variable changes. Raise `ToolError` if uv fails.
    """
    return _places(frozenset(os.environ.items()))


@lru_cache(maxsize=1)
def _places(_environment: frozenset[tuple[str, str]]) -> tuple[Place, ...]:
    configuration = pip.sources()
    variables = indexes.uv_environment(configuration, os.environ)
    options = ("--offline", "--emit-index-url", "--emit-find-links", "--no-cache")
    done, printed = compiled("", "places.txt", variables, options, seconds=60)
    if done.returncode != 0:
        raise ToolError(
            f"uv did not report its indexes (exit {done.returncode})",
            "Check uv's settings: python -m uv pip compile --emit-index-url requirements.txt",
        )
    no_index = variables.get("UV_NO_INDEX") or os.environ.get("UV_NO_INDEX")
    result: list[Place] = []
    flat: list[Place] = []
    for line in printed.splitlines():
        flag, _, url = line.partition(" ")
        if flag == "--find-links":
            flat.append(Place(url=url, flat=True))
        elif flag.endswith("index-url") and not no_index:
            result.append(Place(url=url))
    flat += [Place(url=url, flat=True) for url in pip.links(configuration, os.environ)]
    return tuple(dict.fromkeys(result + flat))


def compiled(
    requirements: str,
    result: str,
    variables: Mapping[str, str],
    options: Sequence[str],
    *,
    seconds: float,
) -> tuple[process.Completed, str]:
    """Run uv as a resolver in a temporary folder; return the completed process and uv's output.

    The output is the text of the file named `result`, or an empty string if uv fails. `variables`
    are environment variables for uv, and `seconds` is the time limit.
    """
    with TemporaryDirectory(prefix="envbuilder-uv-") as name:
        folder = Path(name)
        (folder / "requirements.in").write_text(requirements, encoding="utf-8")
        done = process.run_uv(
            [
                process.uv_path(),
                "pip",
                "compile",
                "--quiet",
                "--no-header",
                # Any interpreter will do, but uv requires one; the target's may not be installed.
                "--python",
                sys.executable,
                "--no-python-downloads",
                *options,
                "--output-file",
                str(folder / result),
                "requirements.in",
            ],
            env=variables,
            folder=folder,
            timeout=seconds,
        )
        return done, (folder / result).read_text("utf-8") if done.returncode == 0 else ""


def uv_variables(source: str, settings: Settings) -> dict[str, str]:
    """Return environment variables for uv that make it search the given source.

    The source is either the user's indexes or a single upstream index.
    """
    variables = indexes.uv_environment(pip.sources(), os.environ)
    if source != indexes.DEFAULT:
        # Only this index: the file is pinned by hash, and other indexes would only cost time.
        variables.pop("UV_INDEX", None)
        variables["UV_DEFAULT_INDEX"] = indexes.url(source, settings)
    return variables


PARALLEL = 6


def fetch(
    files: Sequence[File],
    target: Target,
    settings: Settings,
    progress: Progress,
    arrived: Callable[[File], object] = lambda file: None,
) -> int:
    """Download a target's files into the store, and return how many of them the store lacked.

    `arrived` is called for each downloaded file while others are still being downloaded. Packages
    that are built from source are handled by `sources.source_locker`. Raise `BuildError` if a file
    is unavailable or does not match the lock.
    """
    assert not any(file.recipe for file in files), "no index has those"
    require_writable(settings.store_dir)
    store = Store.of(settings)
    missing = [f for f in files if not store.has(f.sha256)]
    if not missing:
        return 0
    folders = find_links()
    remaining = [f for f in missing if not _take_local(f, store, folders)]
    if remaining:
        try:
            with progress.task(f"locate {len(remaining)} files"):
                urls = _locate(target, remaining, settings)
            session = open_session()
            require_rooms([download_room(remaining, settings)])
            _download_all(remaining, urls, store, session, progress, arrived)
        except BuildError as error:
            raise (_other_file(remaining, store, folders) or error) from error
    return len(missing)


def _other_file(
    files: Iterable[File], store: Store, folders: Sequence[Path]
) -> ChangedFileError | None:
    """Return an error if a find-links folder has other content under the name of a missing file.

    Return None if no folder has such a file.
    """
    for file, folder in product(files, folders):
        path = folder / file.basename
        if path.is_file() and not store.has(file.sha256):
            return _changed(file, str(folder), f"has sha256 {file_sha256(path)}")
    return None


def _take_local(file: File, store: Store, folders: Sequence[Path]) -> bool:
    """Copy a file from a find-links folder to the store, and return whether it was found.

    A file with the right name but a different hash is not copied.
    """
    for folder in folders:
        path = folder / file.basename
        try:
            if not path.is_file() or file_sha256(path) != file.sha256:
                continue
        except OSError:  # another location may have it
            continue
        with store.receiving(file.sha256) as part:
            if not store.has(file.sha256):
                try:
                    shutil.copyfile(path, part)
                except OSError as error:
                    raise full_or_broken(error, part) from error
                store.accept(part, file, str(folder))
        return True
    return False


def _locate(
    target: Target, files: Sequence[File], settings: Settings
) -> dict[str, tuple[str, ...]]:
    """Return the URLs of each file, best URL first, keyed by the file's sha256.

    Files that no source lists are left out.
    """
    urls: dict[str, tuple[str, ...]] = {}
    by_source: dict[tuple[str, bool], list[File]] = {}
    for file in files:
        if file.kind in {"conda", "python"}:
            path = quote(file.file) if file.kind == "python" else file.file
            urls[file.sha256] = (f"{indexes.url(file.source, settings)}/{path}",)
        elif file.kind == "deb":
            from envbuilder.packages.debian import mirrors

            urls[file.sha256] = mirrors.urls(file, settings)
        else:
            by_source.setdefault((file.source, file.kind == "tool"), []).append(file)
    for (source, tools), group in by_source.items():
        # A tool runs on the machine that builds, whose platform may differ from the target's.
        located = _ask_uv(
            None if tools else target.platform, target.python, source, group, settings
        )
        for file in group:
            if file.basename in located:
                urls[file.sha256] = (located[file.basename],)
    return urls


_ELSEWHERE = "To use your own wheels, put them into a folder and name it in PIP_FIND_LINKS."
_AGAIN = (Hint("To lock the files that it has now", ("lock",)), Hint(_ELSEWHERE))


def _is_lacking(file: File, words: str) -> bool:
    """Return whether uv reports that the index was reached but lacks a file's release."""
    name = rf"(?<![\w./-]){re.escape(file.name)}(?![\w.-])"
    return "No solution found" in words and re.search(name, words) is not None


class LackingError(BuildError):
    """Raised when an index no longer has a locked file (exit code 1)."""

    def __init__(self, message: str, hint: Hint | Iterable[Hint], names: Iterable[str]) -> None:
        super().__init__(message, hint)
        self.names = frozenset(names)
        """The names of the missing packages."""


def _ask_uv(
    platform: types.Platform | None,
    python: types.PythonVersion,
    source: str,
    files: Sequence[File],
    settings: Settings,
) -> dict[str, str]:
    """Run uv with the user's configuration, and return the URL of each wheel by file name.

    uv resolves exactly the versions and hashes of `files`. If `platform` is None, wheels for any
    platform are listed. Raise `LackingError` if the source no longer has a file, and `BuildError`
    if uv fails for another reason.
    """
    import tomllib

    lines: dict[str, str] = {}
    for file in files:
        pin = f"{file.name}=={file.version}"
        lines[pin] = f"{lines.get(pin, pin)} --hash=sha256:{file.sha256}"
    variables = uv_variables(source, settings)
    chosen = ("--python-platform", indexes.UV_PLATFORM[platform]) if platform else ("--universal",)
    options = (
        "--no-deps",
        "--format",
        "pylock.toml",
        "--only-binary",
        ":all:",
        *chosen,
        "--python-version",
        python,
        "--cache-dir",
        str(require_writable(settings.uv_dir)),
    )
    with_macos = {"MACOSX_DEPLOYMENT_TARGET": "14.0", **variables}
    requirements = "\n".join(lines.values())
    done, printed = compiled(requirements, "pylock.toml", with_macos, options, seconds=300)
    if done.returncode != 0:
        if lacking := [f for f in files if _is_lacking(f, done.last_words)]:
            shown = ", ".join(f"{f.name} {f.version}" for f in lacking)
            raise LackingError(
                f"'{source}' no longer has these locked files: {shown}:\n{done.last_words}",
                _AGAIN,
                names=[f.name for f in lacking],
            )
        names = first([f.name for f in files], 5)
        raise BuildError(
            f"cannot find {counted(len(files), 'file')} of the lock ({names}) at '{source}':\n"
            f"{done.last_words}",
            f"Check the network. {_ELSEWHERE} To use a mirror, set"
            f" {indexes.mirror_setting(source)}.",
        )
    logins = {**os.environ, **variables}
    urls = {}
    for package in tomllib.loads(printed).get("packages", []):
        for wheel in package.get("wheels", []):
            if url := wheel.get("url"):
                file_name = unquote(urlsplit(url).path).rpartition("/")[2]
                urls[file_name] = indexes.with_login(url, logins)
    return urls


def _download_all(
    files: Sequence[File],
    urls: dict[str, tuple[str, ...]],
    store: Store,
    session: Session,
    progress: Progress,
    arrived: Callable[[File], object],
) -> None:
    from concurrent.futures import as_completed

    total = sum(f.room for f in files) or None
    with (
        progress.task(f"fetch {len(files)} files", total, unit="bytes") as task,
        process.pool(PARALLEL, session.stop) as pool,
    ):
        # Large files first: they determine when all files are there.
        jobs = {
            pool.submit(_download_one, f, urls.get(f.sha256, ()), store, session, task.advance): f
            for f in sorted(files, key=lambda f: -f.room)
        }
        for job in as_completed(jobs):
            job.result()
            arrived(jobs[job])


def _download_one(
    file: File,
    urls: Sequence[str],
    store: Store,
    session: Session,
    advance: Callable[[int], None],
) -> None:
    problems: list[str] = []
    wrong: WrongHashError | None = None
    with store.receiving(file.sha256) as part:
        for url in urls:
            if store.has(file.sha256):  # another process was faster
                return
            origin = host_of(url)
            # A partial file may be from other bytes, and bytes may be damaged on the way.
            for _ in range(3 if part.exists() else 2):
                try:
                    _bring(session, url, part, file, advance)
                    store.accept(part, file, origin)
                except OtherSizeError as error:
                    wrong = _changed(file, origin, str(error))
                    break
                except UnavailableError as error:
                    problems.append(f"{origin}: {error}")
                    break
                except WrongHashError as error:
                    wrong = _changed(file, origin, f"its sha256 is {error.actual}")
                else:
                    return
    if wrong is not None:
        raise wrong
    if not problems:
        raise BuildError(
            f"{file.basename}: cannot be fetched: the index of '{file.source}' does not list it",
            _AGAIN,
        )
    raise BuildError(
        f"{file.basename}: cannot be fetched: {'; '.join(problems)}",
        "Check the network and the index settings. What was fetched so far is kept.",
    )


def _changed(file: File, origin: str, finding: str) -> ChangedFileError:
    """Return the error for a source that serves different content under a locked file's name."""
    size = "" if file.size is None else f" ({file.size} bytes)"
    # `lock` asks the indexes for wheels again; what else a lock has, it keeps.
    command = ("lock",) if file.kind == "wheel" else ("lock", "--upgrade")
    return ChangedFileError(
        f"{file.basename}: {origin} serves another file under this name: expected sha256"
        f" {file.sha256}{size}, but {finding}",
        (
            Hint(
                "The file was replaced upstream, or by a mirror or proxy. Nothing was kept. If"
                " another source still has the locked file, set"
                f" {indexes.mirror_setting(file.source)}, or put the file into a folder named in"
                " PIP_FIND_LINKS."
            ),
            Hint("If the new file is the right one, lock again", command),
        ),
    )


def _bring(
    session: Session, url: str, part: Path, file: File, advance: Callable[[int], None]
) -> None:
    """Fetch the file at `url` into `part`, either over HTTP or from a local index.

    Raise `UnavailableError` if the file is unavailable.
    """
    if urlsplit(url).scheme != "file":
        download(session, url, part, advance, size=file.size)
        return

    source = Path(unquote(urlsplit(url).path))
    if not source.is_file():
        raise UnavailableError("the file no longer exists")
    try:
        shutil.copyfile(source, part)
    except OSError as error:
        raise full_or_broken(error, part) from error
