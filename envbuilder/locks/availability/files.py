"""Check that locked files are still available with the same bytes, or find them elsewhere.

An index is queried for its page of each distribution, a file server for the size of the file; no
file is downloaded. A file that could not be checked is `unknown`, which is neither fine nor lost.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.files import file_sha256
from envbuilder.core.http import host_of
from envbuilder.locks.availability import queries as asking
from envbuilder.locks.availability.findings import Finding, Status
from envbuilder.packages import locations as origins
from envbuilder.packages.locations import BY_PATH, Place
from envbuilder.packages.python import indexes
from envbuilder.packages.python.indexes import DEFAULT, canonical
from envbuilder.packages.store import Store
from envbuilder.profiles.locked_file import File

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.locks.availability.queries import Answer, Asker, Page
    from envbuilder.packages.conda.lock import Lock as CondaLock
    from envbuilder.profiles.lock import Lock

PARALLEL = 6


class Pin(Struct, frozen=True, kw_only=True):
    """A locked file, and the profiles whose locks name it."""

    file: File
    profiles: tuple[str, ...]


def pins(locks: Iterable[Lock], conda: Iterable[CondaLock] = ()) -> tuple[Pin, ...]:
    """Return the files of some locks, each once."""
    named = [(lock.profile, f) for lock in locks for f in lock.files]
    named += [(lock.profile, p.as_file) for lock in conda for t in lock.targets for p in t.packages]
    found: dict[tuple[str, str], tuple[File, list[str]]] = {}
    for profile, file in named:
        users = found.setdefault((file.source, file.sha256), (file, []))[1]
        if profile not in users:
            users.append(profile)
    return tuple(Pin(file=file, profiles=tuple(users)) for file, users in found.values())


def check(
    wanted: Sequence[Pin],
    settings: Settings,
    progress: Progress,
    bundles: Mapping[str, frozenset[str]],
    asker: Asker | None = None,
) -> tuple[Finding, ...]:
    """Return the availability of each locked file; `bundles` maps a name to the sha256s it holds.

    Raise `InvalidError` for a source without a URL. An unreachable source is part of the findings.
    """
    with asking.Asker() if asker is None else asker as ask:
        wheels = [p.file for p in wanted if p.file.kind not in BY_PATH]
        places = _places({f.source for f in wheels}, settings)
        asked = [(place, canonical(f.name)) for f in wheels for place in places[f.source]]
        pages = _pages(tuple(dict.fromkeys(asked)), ask, progress)
        elsewhere = _Elsewhere(settings, places, pages, ask, bundles)

        def one(pin: Pin) -> Finding:
            file = pin.file
            if file.kind in BY_PATH:
                answers = [ask.size(u) for u in origins.urls(file, settings)]
                status, detail = of_archive(answers, file)
            else:
                name = canonical(file.name)
                status, detail = _of_wheel(file, [pages[p, name] for p in places[file.source]], ask)
            return Finding(
                name=file.name,
                version=file.version,
                file=file.basename,
                sha256=file.sha256,
                source=file.source,
                profiles=pin.profiles,
                status=status,
                detail=detail,
                elsewhere=() if status == "fine" else elsewhere.find(file),
            )

        with (
            progress.task(f"ask for {len(wanted)} files", len(wanted)) as task,
            ThreadPoolExecutor(PARALLEL) as pool,
        ):
            found = []
            for finding in pool.map(one, wanted):
                found.append(finding)
                task.advance(1)
        return tuple(found)


def _places(sources: Iterable[str], settings: Settings) -> dict[str, tuple[Place, ...]]:
    """Return the locations that serve each symbolic source."""
    return {
        source: origins.places()
        if source == DEFAULT
        else (Place(url=indexes.url(source, settings)),)
        for source in sources
    }


def _pages(
    wanted: Sequence[tuple[Place, str]], ask: Asker, progress: Progress
) -> dict[tuple[Place, str], Page]:
    """Return what each location lists for a distribution, by (location, distribution)."""
    with (
        progress.task(f"read {len(wanted)} index pages", len(wanted)) as task,
        ThreadPoolExecutor(PARALLEL) as pool,
    ):
        found = {}
        for pair, page in zip(wanted, pool.map(lambda w: ask.page(*w), wanted), strict=True):
            found[pair] = page
            task.advance(1)
        return found


def _of_wheel(file: File, pages: Sequence[Page], ask: Asker) -> tuple[Status, str]:
    """Return the status of a wheel, from what its indexes list and its server answers."""
    status, detail, location = listed(file, pages)
    if not location:
        return status, detail
    return of_server(ask.size(location), file, hashed=status == "fine")


def listed(file: File, pages: Sequence[Page]) -> tuple[Status, str, str]:
    """Return the status, detail and URL of a file, from the pages of its indexes; pure.

    The URL is empty if no page lists the file. Without a stated hash the status is `unknown`, and
    the file's size must decide.
    """
    same = [o for page in pages for o in page.offers if o.file == file.basename]
    right = next((o for o in same if o.sha256 == file.sha256), None)
    if right is not None:
        return "fine", "", right.location
    unstated = next((o for o in same if not o.sha256), None)
    if unstated is not None:
        return "unknown", "", unstated.location
    problems = [page.problem for page in pages if page.problem]
    if problems:
        return "unknown", "; ".join(dict.fromkeys(problems)), ""
    if same:
        return "changed", f"its index states sha256 {same[0].sha256}", ""
    return "vanished", "its index does not list it any more", ""


def of_server(answer: Answer, file: File, *, hashed: bool) -> tuple[Status, str]:
    """Return the status of a file that an index lists, from its server's answer; pure.

    `hashed`: the index states the right hash.
    """
    if answer.state == "gone":
        return "vanished", f"its index lists it, but {answer.host} has it no more"
    if answer.state == "silent":
        return "unknown", f"{answer.host}: {answer.problem}"
    if answer.size is not None and file.size is not None and answer.size != file.size:
        return "changed", f"{answer.host} has {answer.size} bytes, the lock {file.size}"
    if hashed or (answer.size is not None and answer.size == file.size):
        return "fine", ""
    return "unknown", f"{answer.host} states neither a hash nor a size"


def of_archive(answers: Sequence[Answer], file: File) -> tuple[Status, str]:
    """Return the status of a .deb or conda package, from the answers of its servers; pure.

    Only the size is compared: the path holds the version, and archives and channels never change a
    file.
    """
    verdicts = [of_server(a, file, hashed=False) for a in answers]
    for status in ("fine", "unknown", "changed"):
        for verdict in verdicts:
            if verdict[0] == status:
                return verdict
    return "vanished", f"{' and '.join(a.host for a in answers)} have it no more"


class _Elsewhere:
    """A search for bytes that their source no longer has."""

    def __init__(
        self,
        settings: Settings,
        places: Mapping[str, Sequence[Place]],
        pages: Mapping[tuple[Place, str], Page],
        ask: Asker,
        bundles: Mapping[str, frozenset[str]],
    ) -> None:
        self._store = Store(settings.store_dir)
        self._places = dict.fromkeys(p for found in places.values() for p in found)
        self._pages, self._ask, self._bundles = pages, ask, bundles

    def find(self, file: File) -> tuple[str, ...]:
        """Return readable names of the locations that have the file's bytes."""
        found = ["the store"] if _is(self._store.path(file.sha256), file) else []
        found += [str(f) for f in origins.find_links() if _is(f / file.basename, file)]
        if file.kind not in BY_PATH:
            found += [host_of(p.url) for p in self._places if self._listed(p, file)]
        found += [f"the bundle {n}" for n, held in self._bundles.items() if file.sha256 in held]
        return tuple(dict.fromkeys(found))

    def _listed(self, place: Place, file: File) -> bool:
        pair = (place, canonical(file.name))
        page = self._pages.get(pair) or self._ask.page(*pair)
        same = [o for o in page.offers if o.sha256 == file.sha256]
        return any(
            of_server(self._ask.size(o.location), file, hashed=True)[0] == "fine" for o in same
        )


def _is(path: Path, file: File) -> bool:
    try:
        return path.is_file() and file_sha256(path) == file.sha256
    except OSError:
        return False
