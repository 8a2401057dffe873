"""Check that locked files are still available with the same bytes, or find them elsewhere.

An index is queried for its page of each distribution, a file server for the size of the file; no
file is downloaded. A file that could not be checked is `unknown`, which is neither fine nor lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from envbuilder.core import parallel
from envbuilder.core.errors import INVALID, TOOL_MISSING
from envbuilder.core.files import file_sha256
from envbuilder.core.http import host_of
from envbuilder.locks.availability.queries import PARALLEL, Queries
from envbuilder.packages import locations
from envbuilder.packages.locations import BY_PATH, Place
from envbuilder.packages.python import indexes
from envbuilder.packages.python.indexes import DEFAULT, canonical
from envbuilder.packages.store import Store
from envbuilder.profiles.locked_file import File

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.locks.availability.queries import Answer, Page
    from envbuilder.packages.conda.lock import Lock as CondaLock
    from envbuilder.profiles.lock import Lock

Status = Literal["fine", "vanished", "changed", "unknown"]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Finding(Struct, frozen=True, kw_only=True):
    """The availability of one locked file or base image."""

    name: str
    version: str
    file: str
    sha256: str
    source: str
    profiles: tuple[str, ...]
    """The profiles whose locks name it."""
    status: Status
    detail: str = ""
    elsewhere: tuple[str, ...] = ()
    """Other locations with the same sha256, if the status is not `fine`."""

    @property
    def lost(self) -> bool:
        """Return whether no known location has the bytes any more."""
        return self.status in {"vanished", "changed"} and not self.elsewhere


class Summary(Struct, frozen=True, kw_only=True):
    """The result of `lock --check --online` (`online` in its JSON)."""

    checked: int
    fine: int
    lost: int
    unknown: int
    findings: tuple[Finding, ...]
    """Only those that are not `fine`."""

    @property
    def exit_code(self) -> int:
        """Return the exit code: `lost` outweighs `unknown`, and `unknown` is not success."""
        if self.lost:
            return INVALID
        return TOOL_MISSING if self.unknown else 0


def summary(findings: Sequence[Finding]) -> Summary:
    """Count the findings, and keep those that are not fine."""
    return Summary(
        checked=len(findings),
        fine=sum(f.status == "fine" for f in findings),
        lost=sum(f.lost for f in findings),
        unknown=sum(f.status == "unknown" for f in findings),
        findings=tuple(f for f in findings if f.status != "fine"),
    )


def table(result: Summary) -> list[str]:
    """Return the findings that are not fine, and the counts, as lines."""
    lines = []
    for finding in result.findings:
        word = "not checked" if finding.status == "unknown" else finding.status
        lines.append(f"{word}: {finding.file} ({', '.join(finding.profiles)}): {finding.detail}")
        if finding.elsewhere:
            lines.append(f"  the same bytes are in {', '.join(finding.elsewhere)}")
        elif finding.lost:
            lines.append("  the same bytes were found nowhere")
    gone = len(result.findings) - result.unknown
    lines.append(
        f"files: {result.checked}; available: {result.fine}; gone or changed: {gone},"
        f" found nowhere: {result.lost}; not checked: {result.unknown}"
    )
    return lines


class Pin(Struct, frozen=True, kw_only=True):
    """A locked file, and the profiles whose locks name it."""

    file: File
    profiles: tuple[str, ...]


def pins(locks: Iterable[Lock], conda: Iterable[CondaLock] = ()) -> tuple[Pin, ...]:
    """Return the files of some locks, each once."""
    named = [(lock.profile, f) for lock in locks for f in lock.files]
    named += [(lock.profile, p.as_file) for lock in conda for t in lock.targets for p in t.packages]
    users: dict[tuple[str, str], tuple[File, dict[str, None]]] = {}
    for profile, file in named:
        users.setdefault((file.source, file.sha256), (file, {}))[1][profile] = None
    return tuple(Pin(file=file, profiles=tuple(profiles)) for file, profiles in users.values())


def check(
    pinned: Sequence[Pin],
    settings: Settings,
    progress: Progress,
    bundles: Mapping[str, frozenset[str]],
    queries: Queries | None = None,
) -> tuple[Finding, ...]:
    """Return the availability of each locked file; `bundles` maps a name to the sha256s it holds.

    Raise `InvalidError` for a source without a URL. An unreachable source is part of the findings.
    """
    with Queries() if queries is None else queries as ask:
        search = _Search([p.file for p in pinned], settings, progress, bundles, ask)
        return tuple(each(f"check {len(pinned)} files", search.finding, pinned, progress))


def each(
    task: str,
    question: Callable[[_Item], _Result],
    items: Sequence[_Item],
    progress: Progress,
) -> list[_Result]:
    """Ask a question about each item, in parallel; return the results in the items' order."""
    with progress.task(task, len(items)) as shown, parallel.pool(PARALLEL) as pool:
        results = []
        for result in pool.map(question, items):
            results.append(result)
            shown.advance(1)
        return results


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
        return "vanished", f"its index lists it, but {answer.host} no longer has it"
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
    return "vanished", f"{' and '.join(a.host for a in answers)} no longer have it"


class _Search:
    """What the indexes of some files list, and where else their bytes may be."""

    def __init__(
        self,
        files: Sequence[File],
        settings: Settings,
        progress: Progress,
        bundles: Mapping[str, frozenset[str]],
        queries: Queries,
    ) -> None:
        self._settings, self._bundles, self._queries = settings, bundles, queries
        wheels = [f for f in files if f.kind not in BY_PATH]
        self._places = {
            source: locations.places()
            if source == DEFAULT
            else (Place(url=indexes.url(source, settings)),)
            for source in {f.source for f in wheels}
        }
        pairs = dict.fromkeys(
            (p, canonical(f.name)) for f in wheels for p in self._places[f.source]
        )
        task = f"read {len(pairs)} index pages"
        pages = each(task, lambda pair: queries.page(*pair), tuple(pairs), progress)
        self._pages = dict(zip(pairs, pages, strict=True))

    def finding(self, pin: Pin) -> Finding:
        """Return the availability of one file."""
        file = pin.file
        status, detail = self._status(file)
        return Finding(
            name=file.name,
            version=file.version,
            file=file.basename,
            sha256=file.sha256,
            source=file.source,
            profiles=pin.profiles,
            status=status,
            detail=detail,
            elsewhere=() if status == "fine" else tuple(self._elsewhere(file)),
        )

    def _status(self, file: File) -> tuple[Status, str]:
        if file.kind in BY_PATH:
            urls = locations.urls(file, self._settings)
            return of_archive([self._queries.file(url) for url in urls], file)
        pages = [self._pages[place, canonical(file.name)] for place in self._places[file.source]]
        status, detail, url = listed(file, pages)
        if not url:
            return status, detail
        return of_server(self._queries.file(url), file, hashed=status == "fine")

    def _elsewhere(self, file: File) -> dict[str, None]:
        """Return readable names of the locations that have the file's bytes."""
        stored = Store.of(self._settings).path(file.sha256)
        names = ["the store"] if _is(stored, file) else []
        names += [str(f) for f in locations.find_links() if _is(f / file.basename, file)]
        if file.kind not in BY_PATH:
            places = dict.fromkeys(p for places in self._places.values() for p in places)
            names += [host_of(p.url) for p in places if self._has(p, file)]
        names += [f"the bundle {n}" for n, held in self._bundles.items() if file.sha256 in held]
        return dict.fromkeys(names)

    def _has(self, place: Place, file: File) -> bool:
        pair = (place, canonical(file.name))
        page = self._pages.get(pair) or self._queries.page(*pair)
        urls = [o.location for o in page.offers if o.sha256 == file.sha256]
        return any(
            of_server(self._queries.file(url), file, hashed=True)[0] == "fine" for url in urls
        )


def _is(path: Path, file: File) -> bool:
    try:
        return path.is_file() and file_sha256(path) == file.sha256
    except OSError:
        return False
