"""The pages of the user's indexes, as they were on a day: which releases of a package they list."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from envbuilder.core import archives, http, pip, process, types
from envbuilder.packages import fetch
from envbuilder.packages.python import indexes, upstream, wheel_conflicts
from envbuilder.packages.python.uv import Offer, best_rank, target_tags
from envbuilder.packages.sources import static_metadata
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from packaging.specifiers import SpecifierSet
    from packaging.tags import Tag

    from envbuilder.core.settings import Settings
    from envbuilder.packages.fetch import Place

PARALLEL = 8
_NOT_FOUND = 404
"""The one status that says of a package that an index does not have it."""
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_LARGEST_METADATA = 4 << 20
_WHEELS_READ = 2
"""Wheels of a release that are asked in turn what it requires."""
Target = tuple[types.Platform, types.PythonVersion]


class Release(Struct, frozen=True, kw_only=True):
    """A version of a package on the indexes."""

    version: str
    wheels: tuple[upstream.Listed, ...] = ()
    sdist: upstream.Listed | None = None
    requires_dist: tuple[str, ...] | None = None
    """What it requires, if that is stated without reading a file."""

    def is_for(self, python: str) -> bool:
        """Return whether it is made for a Python, for which it need not have a wheel.

        A folder of wheels, which has no upload times, does not say so.
        """
        wheels = (w for w in self.wheels if w.requires_python or w.upload_time)
        return any(upstream.admits(file, python) for file in (*wheels, self.sdist) if file)

    def usable(self, ranks: Mapping[Tag, int]) -> upstream.Listed | None:
        """Return the best of its wheels for some tags."""
        best: tuple[int, upstream.Listed] | None = None
        for wheel in self.wheels:
            rank = best_rank(wheel.file, ranks)
            if rank is not None and (best is None or rank < best[0]):
                best = rank, wheel
        return best[1] if best else None


@lru_cache(maxsize=32)
def ranks(target: Target) -> Mapping[Tag, int]:
    """Return the wheel tags that a target accepts, each with its rank; 0 is the best."""
    return {tag: rank for rank, tag in enumerate(target_tags(*target))}


class Index:
    """The pages of a user's indexes, as they were on a day; each is read once."""

    def __init__(
        self,
        places: Sequence[Place],
        read: Callable[[str], bytes],
        stated: Callable[[upstream.Listed], list[str] | None],
        as_of: str | None = None,
    ) -> None:
        """`read` returns a page, `stated` what a wheel requires, None if it cannot be read."""
        self._places = places
        self._as_of = as_of
        self._read = upstream.Pages(read).read
        self._stated = stated
        self._releases: dict[str, dict[Version, Release]] = {}
        self._yanked: dict[str, dict[Version, Release]] = {}
        self._requires: dict[str, list[str] | None] = {}
        self.problems: dict[str, str] = {}
        """Package → why not all indexes say whether they have it."""
        self.too_late: dict[str, str] = {}
        """Package that indexes have, and had not on the day → what they say."""

    def prefetch(self, names: Iterable[str]) -> None:
        """Read several pages side by side."""
        with process.pool(PARALLEL) as pool:
            list(pool.map(self.releases, dict.fromkeys(names)))

    def releases(self, name: str) -> dict[Version, Release]:
        """Return the releases of a package; none if no index has it, or `problems` has it."""
        if name not in self._releases:
            problems: dict[str, OSError] = {}
            every: list[tuple[Version, upstream.Listed]] = []
            late: list[str] = []
            for place in self._places:
                listed = upstream.files_of(name, [place.page(name)], self._read, problems)
                for version, link in listed:
                    if self._had(link, place.flat):
                        every.append((version, link))
                    else:
                        late.append(link.upload_time[:10] or "9")
            if late and not every:
                first = min(late)
                self.too_late[name] = f"no release of {self._as_of} or before is known" + (
                    f"; the first is of {first}" if first != "9" else ""
                )
            self._yanked[name] = self._grouped(pair for pair in every if pair[1].yanked)
            self._releases[name] = self._grouped(pair for pair in every if not pair[1].yanked)
            for url, error in problems.items():
                if getattr(getattr(error, "response", None), "status_code", 0) != _NOT_FOUND:
                    self.problems[name] = f"{http.host_of(url)}: {http.reason(error)}"
        return self._releases[name]

    def _had(self, link: upstream.Listed, flat: bool) -> bool:
        """Return whether a file was there on the day, as uv says: without a date, in folders."""
        day = link.upload_time[:10]
        return not self._as_of or (day <= self._as_of if day else flat)

    def pinned(self, name: str, specifiers: Iterable[SpecifierSet]) -> dict[Version, Release]:
        """Return the releases among which specifiers choose: yanked ones, too, if they pin one.

        So installers have it (PEP 592).
        """
        result = {**self.releases(name)}
        for clause in chain.from_iterable(specifiers):
            if clause.operator == "==" and "*" not in clause.version:
                version = Version(clause.version)
                if version in self._yanked[name]:
                    result[version] = self._yanked[name][version]
        return result

    def _grouped(self, listed: Iterable[tuple[Version, upstream.Listed]]) -> dict[Version, Release]:
        # By name: a folder that also has a file of an index does not say which Pythons it is for.
        wheels: dict[Version, dict[str, upstream.Listed]] = defaultdict(dict)
        sdists: dict[Version, upstream.Listed] = {}
        for version, link in listed:
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

    def requires(self, release: Release, wheel: upstream.Listed) -> Sequence[str]:
        """Return what a wheel requires; nothing if that cannot be read."""
        if release.requires_dist is not None:
            return release.requires_dist
        return self._read_requires(wheel) or ()

    def _read_requires(self, wheel: upstream.Listed) -> Sequence[str] | None:
        if wheel.file not in self._requires:
            self._requires[wheel.file] = self._stated(wheel)
        return self._requires[wheel.file]

    def required_elsewhere(self, name: str, version: str) -> Sequence[str] | None:
        """Return what a release requires, by a wheel for another platform; None without one."""
        every = self.releases(name)
        release = {**self._yanked[name], **every}.get(Version(version))
        wheels = [w for w in release.wheels if not w.file.endswith("-any.whl")] if release else []
        lists = map(self._read_requires, wheels[:_WHEELS_READ])
        return next((lines for lines in lists if lines is not None), None)


@contextmanager
def opened(settings: Settings, as_of: str | None = None) -> Iterator[Index]:
    """Yield the user's indexes."""
    store = Store.of(settings)
    logins = dict(os.environ)

    with http.open_session() as session:

        def metadata(wheel: upstream.Listed) -> list[str]:
            folder = pip.local_folder(wheel.location)
            source = folder or wheel_conflicts.RemoteFile(
                session, indexes.with_login(wheel.location, logins)
            )
            with archives.open_zip(source) as archive:
                name = next(n for n in archive.namelist() if _METADATA.fullmatch(n))
                text = wheel_conflicts.text(archive, name, _LARGEST_METADATA)
            found = static_metadata.metadata(text)
            return [*found[0].requires_dist] if found else []

        def remembered(wheel: upstream.Listed) -> list[str] | None:
            inputs = f"{wheel.file} {wheel.sha256} requires-1"
            with suppress(*wheel_conflicts.UNREADABLE, OSError, StopIteration):
                if wheel.sha256:
                    return store.remembered(inputs, list[str], lambda: metadata(wheel))
                return metadata(wheel)
            return None

        read = partial(upstream.page, read=partial(upstream.read_url, session=session))
        yield Index(fetch.places(), read, remembered, as_of)


def of_offers(offers: Iterable[Offer]) -> dict[str, dict[Version, Release]]:
    """Return the releases that are offered, by package."""
    result: dict[str, dict[Version, Release]] = defaultdict(dict)
    for offer in offers:
        try:
            version = Version(offer.version)
        except InvalidVersion:
            continue
        wheel = upstream.Listed(
            file=offer.file,
            location=offer.location,
            sha256=offer.sha256,
            requires_python=offer.requires_python,
        )
        releases = result[types.canonical(offer.distribution)]
        release = releases.get(version)
        if release is None:
            release = Release(version=str(version), requires_dist=offer.requires_dist)
        releases[version] = replace(release, wheels=(*release.wheels, wheel))
    return dict(result)
