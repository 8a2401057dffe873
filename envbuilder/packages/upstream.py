"""Known wheels and sources, read from the user's indexes and from named upstream indexes.

The offers of an upstream index are collected from three sources, best first: the index itself, if
it answers; wheels in the user's own find-links folders; and claims that ship with envbuilder. A
claim is a hash from a third-party lock file or from a public copy of the index
(`profiles/releases/`). Claims make it possible to lock a profile even if the index cannot be
reached. The download then confirms or refutes the claims. If an index answers, even if it is only a
partial mirror, it offers only the files that it lists. No claim is written from memory: each claim
names its source.

This module is long because the offers of an index and the releases that it had on a given day are
read from the same pages.
"""

from __future__ import annotations

import csv
import functools
import os
import re
import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from envbuilder.core import archives, decoding, files, http, pip, process, resources, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import file_sha256, read_text
from envbuilder.packages import fetch
from envbuilder.packages.python import indexes, static_metadata, wheel_conflicts
from envbuilder.packages.python.uv import Offer, best_rank, ranks
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packaging.tags import Tag

    from envbuilder.core.http import Session
    from envbuilder.core.settings import Settings
    from envbuilder.packages.fetch import Place


TIMEOUT = (4.0, 15.0)
_LARGEST_LOCAL_PAGE = 4 << 20
"""Maximum size in bytes of an index page in a local folder. There is a limit because other users
may be able to write to the folder."""
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


class _Link(Struct, frozen=True, rename="kebab"):
    """A file on an index page in JSON format (PEP 691)."""

    filename: str
    url: str
    hashes: dict[str, str] | None = None
    size: int | None = None
    requires_python: str | None = None
    core_metadata: bool | dict[str, str] | None = None
    dist_info_metadata: bool | dict[str, str] | None = None
    upload_time: str = ""
    yanked: bool | str = False


class Listed(Struct, frozen=True, kw_only=True):
    """A file that an index page lists, whether it is a wheel or anything else."""

    file: str
    location: str
    sha256: str
    """The file's hash; empty if the page does not state it."""
    size: int | None = None
    requires_python: str = ""
    core_metadata: bool = False
    upload_time: str = ""
    """The upload time in the format of PEP 700, `2022-03-01T…`; empty if the page does not state
    it."""
    yanked: bool = False


class _Page(Struct, frozen=True):
    files: tuple[_Link, ...]


class _Links(HTMLParser):
    """A parser that collects the anchors of an HTML index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record every anchor that has a link target."""
        found = {key: value or "" for key, value in attrs}
        if tag == "a" and found.get("href"):
            self.anchors.append(found)


def parse_page(text: str, url: str, distribution: str, source: str) -> list[Offer]:
    """Return offers for a distribution's wheels that an index page (JSON or HTML) lists.

    A wheel's sha256 is empty if the page does not specify it.
    """
    offers = []
    for link in listed(text, url):
        version = version_of(link.file, distribution)
        if version and link.file.endswith(".whl"):
            offers.append(
                Offer(
                    distribution=distribution,
                    version=str(version),
                    file=link.file,
                    sha256=link.sha256,
                    source=source,
                    provenance="read",
                    by=f"the index {source}",
                    size=link.size,
                    requires_python=link.requires_python,
                    core_metadata=link.core_metadata,
                    location=link.location,
                )
            )
    return offers


def listed(text: str, url: str) -> list[Listed]:
    """Return every file on an index page (JSON or HTML), including source distributions."""
    stripped = text.lstrip()
    return _json_links(stripped, url) if stripped.startswith("{") else _html_links(text, url)


def _json_links(text: str, url: str) -> list[Listed]:
    try:
        return [
            Listed(
                file=f.filename,
                location=f.url if f.url.startswith("https://") else urljoin(url, f.url),
                sha256=(f.hashes or {}).get("sha256", ""),
                size=f.size,
                requires_python=f.requires_python or "",
                core_metadata=bool(f.core_metadata or f.dist_info_metadata),
                upload_time=f.upload_time,
                yanked=f.yanked is not False,
            )
            for f in decoding.from_json(text, _Page).files
        ]
    except (ValueError, RecursionError):
        return []


def _html_links(text: str, url: str) -> list[Listed]:
    parser = _Links()
    parser.feed(text)
    files = []
    for anchor in parser.anchors:
        try:
            location, fragment = urldefrag(urljoin(url, anchor["href"]))
        except ValueError:
            continue
        algorithm, _, digest = fragment.partition("=")
        metadata_hash = anchor.get("data-core-metadata") or anchor.get("data-dist-info-metadata")
        files.append(
            Listed(
                file=unquote(location.rpartition("/")[2]),
                location=location,
                sha256=digest if algorithm == "sha256" else "",
                requires_python=anchor.get("data-requires-python", ""),
                core_metadata=bool(metadata_hash),
                yanked="data-yanked" in anchor,
            )
        )
    return files


def version_of(file: str, distribution: str) -> Version | None:
    """Return the version in the file name of a distribution's wheel or source archive.

    Return None for any other file. Wheel tags are not parsed here, because pages list thousands of
    wheels.
    """
    parts = file.removesuffix(".whl").split("-")
    try:
        if file.endswith(".whl"):
            name = types.canonical(parts[0])
            version = _version(parts[1])
        else:
            name, version = parse_sdist_filename(file)
    except (ValueError, IndexError):  # also for a version number of 5,000 digits
        return None
    return version if name == types.canonical(distribution) else None


_version = functools.lru_cache(maxsize=1 << 14)(Version)
"""Parse a version. The result is cached, because many wheels share the same version."""


def read_url(url: str, session: Session | None = None) -> bytes:
    """Return the content at a URL; raise `OSError` if it cannot be retrieved."""
    if session is None:
        with http.open_session() as opened:
            return read_url(url, opened)
    with http.request(session, "GET", url, {"Accept": ACCEPT}, TIMEOUT) as answer:
        answer.raise_for_status()
        return http.read(answer)


def page(address: str, read: Callable[[str], bytes] | None = None) -> bytes:
    """Return an index page, or an HTML list of the files if the address is a local folder.

    Raise `OSError` if the page or folder cannot be read.
    """
    folder = pip.local_folder(address)
    if folder is None:
        return (read or read_url)(address)
    if (folder / "index.html").is_file():
        return files.read(folder / "index.html", _LARGEST_LOCAL_PAGE)
    names = sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208 (names alone)
    links = (f'<a href="{(folder / n).absolute().as_uri()}">{n}</a>\n' for n in names)
    return "".join(links).encode()


def admits(link: Listed, python: str) -> bool:
    """Return whether a file's `requires_python` allows a Python version.

    An invalid `requires_python` allows every version.
    """
    try:
        specifier = SpecifierSet(link.requires_python)
    except InvalidSpecifier:
        return True
    return any(specifier.contains(f"{python}.{patch}") for patch in (0, 30))


def files_of(
    name: str, addresses: Iterable[str], read: Callable[[str], bytes], problems: dict[str, OSError]
) -> Iterator[tuple[Version, Listed]]:
    """Yield the files of a package that index pages list, each with its version.

    The files are wheels and source distributions. If a page cannot be read, the error is added to
    `problems` under the page's address.
    """
    for address in addresses:
        try:
            text = read(address).decode("utf-8", "replace")
        except OSError as error:
            problems[address] = error
            continue
        for link in listed(text, address):
            if version := version_of(link.file, name):
                yield version, link


class Pages:
    """A thread-safe cache of index pages.

    An unreachable server is not tried again, since each attempt may take as long as `TIMEOUT`.
    """

    def __init__(self, read: Callable[[str], bytes] = read_url) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._pages: dict[str, bytes] = {}
        self._unreachable: dict[str, OSError] = {}

    def read(self, url: str) -> bytes:
        """Return the content at a URL; raise `OSError` if it cannot be retrieved."""
        with self._lock:
            if error := self._unreachable.get(http.host_of(url)):
                raise error
            if url not in self._pages:
                import requests

                try:
                    self._pages[url] = self._read(url)
                except (requests.ConnectionError, requests.Timeout) as error:
                    self._unreachable[http.host_of(url)] = error
                    raise
            return self._pages[url]


def read_wheel(path: Path) -> Offer:
    """Return an offer for a wheel on disk; raise `InvalidError` if the wheel is damaged.

    The offer includes the wheel's hash.
    """
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        with archives.open_zip(path) as archive:
            next(filter(_METADATA.fullmatch, archive.namelist()))
        return Offer(
            distribution=name,
            version=str(version),
            file=path.name,
            sha256=file_sha256(path),
            source="",
            provenance="read",
            by="the file itself, in a find-links folder",
            size=path.stat().st_size,
            location=str(path),
        )
    except (OSError, *archives.BAD_ZIP, InvalidWheelFilename, StopIteration) as error:
        raise InvalidError(f"{path}: not a readable wheel: {error}") from error


def claims(distribution: str, source: str) -> tuple[Offer, ...]:
    """Return a distribution's wheels on an index, with claimed hashes from `profiles/releases/`.

    `hashes.csv` contains the hashes of the wheels. `requires.csv` contains the wheels' requirements
    by release and build, where an empty build stands for the CPU build. Only the rows for the given
    index are parsed, because the table of hashes is long.
    """
    folder = resources.profiles_dir() / "releases"
    name = types.canonical(distribution)
    lines = read_text(folder / "hashes.csv").splitlines()
    rows = [line.split(",") for line in lines if line.startswith(f"{source},")]
    rows = [row for row in rows if types.canonical(row[1].partition("-")[0]) == name]
    if not rows:
        return ()
    by = dict(csv.reader(read_text(folder / "sources.csv").splitlines()))
    table = csv.DictReader(read_text(folder / "requires.csv").splitlines())
    requires = {(row["distribution"], row["release"], row["build"]): row for row in table}
    offers = []
    for _, file, sha256, key, size, provenance in rows:
        version = file.split("-")[1]
        release, _, build = version.partition("+")
        needs = requires[name, release, build.removeprefix("cpu")]
        offers.append(
            Offer(
                distribution=name,
                version=version,
                file=file,
                sha256=sha256,
                source=source,
                # A claimed hash with assumed requirements is only assumed.
                provenance=provenance or needs["provenance"],
                by=by[key] if provenance else f"{by[key]}; requirements: {by[needs['source']]}",
                size=int(size) if size.isdecimal() else None,
                size_about=int(size[1:]) if size.startswith("~") else None,
                requires_python=needs["requires_python"],
                requires_dist=tuple(filter(None, needs["requires_dist"].split(" | "))),
            )
        )
    return tuple(offers)


def local_wheels(locations: Iterable[str], distribution: str, store: Store) -> list[Offer]:
    """Return offers for those wheels of a distribution that are in folders on this machine.

    Results are cached until a wheel changes, because the wheels of frameworks are large.
    """

    def offer(path: Path) -> Offer:
        try:
            status = path.stat()
        except OSError:
            return read_wheel(path)  # which says that it is not readable
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        facts = f"{status.st_dev} {status.st_ino} {status.st_size} {times}"
        return store.remembered(f"wheel 1 {path} {facts}", Offer, lambda: read_wheel(path))

    name = types.canonical(distribution)
    result: list[Offer] = []
    for location in locations:
        folder = pip.local_folder(location)
        wheels = sorted(folder.glob("*.whl")) if folder else []
        result += [offer(w) for w in wheels if types.canonical(w.name.split("-")[0]) == name]
    return result


def merge(
    upstream: Iterable[Offer], local: Iterable[Offer], claimed: Iterable[Offer], source: str
) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """Merge the offers of an index into one offer per file name, and note contradictions.

    Return the merged offers and the notes. For each file, the offer from the best source is used.
    Claims are used as offers only if the index lists nothing. Raise `InvalidError` for a local file
    that contradicts the upstream index or a claim.
    """
    by_file = {o.file: o for o in claimed}
    notes = []
    result: dict[str, Offer] = {}
    for offer in upstream:
        claim = by_file.get(offer.file)
        if not offer.sha256:
            # This index states no hash for some of its files.
            if claim is None:
                continue
            result[offer.file] = replace(claim, location=offer.location)
            continue
        if claim and claim.sha256 != offer.sha256:
            notes.append(
                f"{offer.file}: using the hash of the index {source}, which differs from public"
                " locks"
            )
        if not offer.core_metadata and claim:
            offer = replace(offer, requires_dist=claim.requires_dist)  # noqa: PLW2901
        result[offer.file] = offer
    if not result:
        result = {**by_file}
    for offer in local:
        existing = result.get(offer.file) or by_file.get(offer.file)
        if existing and existing.sha256 != offer.sha256:
            raise InvalidError(
                f"{offer.location}: sha256 is {offer.sha256},"
                f" but {existing.by} has {existing.sha256}",
                "Remove the file, or download it again from its index.",
            )
        by = offer.by
        if existing and existing.provenance == "read":
            # Keep the public origin, so that a lock does not depend on the machine that made it.
            by = existing.by
        result[offer.file] = replace(offer, source=source, by=by)
    return tuple(result[f] for f in sorted(result)), tuple(notes)


_NOT_FOUND = 404
"""The only HTTP status which means that an index does not have a package."""


def _is_missing(error: OSError) -> bool:
    """Return whether the error means that the index does not have the package."""
    return getattr(getattr(error, "response", None), "status_code", 0) == _NOT_FOUND


def offers(
    sources: dict[str, str],
    settings: Settings,
    find_links: Sequence[str],
    on_progress: Callable[[str], None],
    read: Callable[[str], bytes] = read_url,
) -> tuple[Offer, ...]:
    """Return all known wheels of the distributions in `sources` (name → symbolic index name).

    If an index is unreachable, the claims recorded for that index are used instead. Raise
    `InvalidError` for an index without a URL, and for a local wheel that contradicts its index or a
    claim.
    """
    result: list[Offer] = []
    store = Store.of(settings)
    silent: set[str] = set()
    answering: set[str] = set()
    for distribution, source in sorted(sources.items()):
        page: list[Offer] = []
        claimed = claims(distribution, source)
        if source not in silent:
            address = f"{indexes.url(source, settings)}/{types.canonical(distribution)}/"
            try:
                text = read(address).decode("utf-8", "replace")
                page = parse_page(text, address, distribution, source)
                answering.add(source)
            except OSError as error:
                if not _is_missing(error):
                    silent.add(source)
                    on_progress(
                        f"{source}: unreachable ({http.reason(error)}), so hashes from public"
                        " locks are used"
                    )
                elif source in answering:
                    claimed = ()
                elif claimed:
                    on_progress(
                        f"{source}: no page of {distribution}, so hashes from public locks are used"
                    )
        merged, notes = merge(page, local_wheels(find_links, distribution, store), claimed, source)
        for note in notes:
            on_progress(note)
        result += merged
    return tuple(result)


# The releases of a package, as the user's indexes listed them on a day


PARALLEL = 8
PYTHONS: tuple[types.PythonVersion, ...] = tuple(f"3.{minor}" for minor in range(8, 15))
"""The Python versions for which packages are searched."""
_LARGEST_METADATA = 4 << 20
"""Maximum size in bytes of a wheel's METADATA."""
_WHEELS_READ = 2
"""Maximum number of wheels of a release to try when reading the release's requirements."""
Target = tuple[types.Platform, types.PythonVersion]


class Release(Struct, frozen=True, kw_only=True):
    """A release of a package on the user's indexes."""

    version: str
    wheels: tuple[Listed, ...] = ()
    sdist: Listed | None = None

    def is_for(self, python: str) -> bool:
        """Return whether the release supports a Python version, with or without a wheel for it.

        Wheels from a folder are not considered, because a folder specifies neither their upload
        times nor the Python versions that they support.
        """
        wheels = (w for w in self.wheels if w.requires_python or w.upload_time)
        return any(admits(file, python) for file in (*wheels, self.sdist) if file)

    def usable(self, ranks: Mapping[Tag, int]) -> Listed | None:
        """Return the wheel whose tags have the best rank, or None if no wheel has a ranked tag."""
        best: tuple[int, Listed] | None = None
        for wheel in self.wheels:
            rank = best_rank(wheel.file, ranks)
            if rank is not None and (best is None or rank < best[0]):
                best = rank, wheel
        return best[1] if best else None


def pythons(releases: Iterable[Release], platform: types.Platform) -> tuple[str, ...]:
    """Return the Python versions for which at least one release has a wheel on a platform."""
    every = tuple(releases)
    having = []
    for python in PYTHONS:
        accepted = ranks(platform, python)
        if any(release.usable(accepted) for release in every):
            having.append(python)
    return tuple(having)


class Index:
    """The releases on the user's indexes as of a given day. Each index page is read only once."""

    def __init__(
        self,
        places: Sequence[Place],
        read: Callable[[str], bytes],
        stated: Callable[[Listed], list[str] | None],
        as_of: str | None = None,
    ) -> None:
        """Store the locations of the indexes and the functions that read from them.

        `read` returns an index page. `stated` returns a wheel's requirements, or None if the wheel
        cannot be read. `as_of` is the day whose state of the indexes is used; None stands for
        today.
        """
        self._places = places
        self._as_of = as_of
        self._read = Pages(read).read
        self._stated = stated
        self._releases: dict[str, dict[Version, Release]] = {}
        self._yanked: dict[str, dict[Version, Release]] = {}
        self._requires: dict[str, list[str] | None] = {}
        self.problems: dict[str, str] = {}
        """Package name → the reason why it is unknown whether the indexes have the package."""
        self.too_late: dict[str, str] = {}
        """Package that the indexes list now, but did not list on the given day → the explanation to
        print."""

    def prefetch(self, names: Iterable[str]) -> None:
        """Read the pages of several packages in parallel."""
        with process.pool(PARALLEL) as pool:
            list(pool.map(self.releases, dict.fromkeys(names)))

    def releases(self, name: str) -> dict[Version, Release]:
        """Return the releases of a package by version, without yanked releases.

        The result is empty if no index has the package. The result is also empty if the indexes
        cannot be read; `problems` then contains the reason.
        """
        if name not in self._releases:
            problems: dict[str, OSError] = {}
            every: list[tuple[Version, Listed]] = []
            late: list[str] = []
            for index in self._places:
                for version, link in files_of(name, [index.page(name)], self._read, problems):
                    if self._had(link, index.flat):
                        every.append((version, link))
                    else:
                        late.append(link.upload_time[:10] or "9")
            if late and not every:
                first = min(late)
                self.too_late[name] = f"no release from {self._as_of} or before is known" + (
                    f", the first is from {first}" if first != "9" else ""
                )
            self._yanked[name] = self._grouped(pair for pair in every if pair[1].yanked)
            self._releases[name] = self._grouped(pair for pair in every if not pair[1].yanked)
            for url, error in problems.items():
                if not _is_missing(error):
                    self.problems[name] = f"{http.host_of(url)}: {http.reason(error)}"
        return self._releases[name]

    def fitting(self, name: str, allowed: SpecifierSet) -> dict[Version, Release]:
        """Return the releases of a package that a specifier allows, oldest first.

        A yanked release is included only if it is pinned (PEP 592).
        """
        every = {**self.releases(name)}
        for version_text in allowed:
            if version_text.operator == "==" and not version_text.version.endswith("*"):
                yanked = self._yanked[name].get(Version(version_text.version))
                every |= {Version(version_text.version): yanked} if yanked else {}
        return {version: every[version] for version in sorted(allowed.filter(every))}

    def _had(self, link: Listed, flat: bool) -> bool:
        """Return whether an index had a file on the given day.

        As in uv, a file without an upload time is assumed to have existed if it is in a folder.
        """
        day = link.upload_time[:10]
        return not self._as_of or (day <= self._as_of if day else flat)

    def _grouped(self, links: Iterable[tuple[Version, Listed]]) -> dict[Version, Release]:
        # By name: a folder that also has a file of an index does not say which Pythons it is for.
        wheels: dict[Version, dict[str, Listed]] = defaultdict(dict)
        sdists: dict[Version, Listed] = {}
        for version, link in links:
            if link.file.endswith(".whl"):
                known = wheels[version].get(link.file)
                wheels[version][link.file] = known if known and known.requires_python else link
            else:
                sdists[version] = link
        return {
            version: Release(
                version=str(version), wheels=(*wheels[version].values(),), sdist=sdists.get(version)
            )
            for version in sorted({*wheels, *sdists})
        }

    def requires(self, wheel: Listed) -> Sequence[str]:
        """Return a wheel's requirements, or an empty sequence if they cannot be read."""
        return self._read_requires(wheel) or ()

    def _read_requires(self, wheel: Listed) -> Sequence[str] | None:
        if wheel.file not in self._requires:
            self._requires[wheel.file] = self._stated(wheel)
        return self._requires[wheel.file]

    def required_elsewhere(self, name: str, version: str) -> Sequence[str] | None:
        """Return the requirements of a release, read from one of its platform-specific wheels.

        Return None if the release has no readable wheel of this kind.
        """
        every = self.releases(name)
        release = {**self._yanked[name], **every}.get(Version(version))
        wheels = [w for w in release.wheels if not w.file.endswith("-any.whl")] if release else []
        lists = map(self._read_requires, wheels[:_WHEELS_READ])
        return next((lines for lines in lists if lines is not None), None)


@contextmanager
def opened(settings: Settings, as_of: str | None = None) -> Iterator[Index]:
    """Yield the user's indexes as they were on a given day, which is today by default."""
    store = Store.of(settings)
    logins = dict(os.environ)

    with http.open_session() as session:

        def metadata(wheel: Listed) -> list[str]:
            folder = pip.local_folder(wheel.location)
            source = folder or wheel_conflicts.RemoteFile(
                session, indexes.with_login(wheel.location, logins)
            )
            with archives.open_zip(source) as archive:
                name = next(filter(_METADATA.fullmatch, archive.namelist()))
                text = wheel_conflicts.text(archive, name, _LARGEST_METADATA)
            found = static_metadata.metadata(text)
            return [*found[0].requires_dist] if found else []

        def remembered(wheel: Listed) -> list[str] | None:
            inputs = f"{wheel.file} {wheel.sha256} requires-1"
            with suppress(*wheel_conflicts.UNREADABLE, OSError, StopIteration):
                if wheel.sha256:
                    return store.remembered(inputs, list[str], lambda: metadata(wheel))
                return metadata(wheel)
            return None

        read = functools.partial(page, read=functools.partial(read_url, session=session))
        yield Index(fetch.places(), read, remembered, as_of)
