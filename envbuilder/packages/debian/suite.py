"""Debian archives: the packages in a suite, their dependencies, and the bases made from them.

Package lists are read over HTTP from the machine's own mirror and checked against the sha256 in
their Release file. The Release file's signature is not checked. Therefore, the mirror must be
trusted when a lock is made, but not when the lock is used, because the lock contains the sha256 of
every file.

This module is long because locking .deb files requires everything about a suite: its packages,
their dependencies and its minimal system.
"""

from __future__ import annotations

import hashlib
import io
import operator
import re
import threading
from collections import defaultdict
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.core import archives, decoding, types
from envbuilder.core.errors import BuildError, InvalidError, clipped
from envbuilder.core.http import open_session, read, reason, request
from envbuilder.packages.debian import mirrors
from envbuilder.packages.python import indexes, libraries
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import (
    MAIN,
    SECURITY,
    File,
    Lock,
    LockedBase,
    Target,
    inputs_digest,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile

_FIELD = re.compile(
    rb"^(Package|Version|Depends|Pre-Depends|Provides|Essential|Priority|Filename|Size"
    rb"|SHA256):(.*)$",
    re.MULTILINE,
)
_EMPTY_LINES = re.compile(rb"\n[ \t\r]*\n\s*")
_VERSION = re.compile(r"[0-9]{1,9}:[A-Za-z0-9.+:~-]{1,256}|[A-Za-z0-9.+~-]{1,256}", re.ASCII)
"""Matches versions that can be compared. Only a version with an epoch may contain further colons.
Debian policy is stricter than this pattern."""
_SIZE = re.compile(r"[0-9]{1,15}", re.ASCII)
_MOST = 200_000
"""Maximum number of packages in a mirror's list. Debian's list has 70,000."""
_STANZA = 1 << 20
"""Maximum size in bytes of a package's stanza in a mirror's list. The largest stanzas have 30,000
bytes."""


class Package(Struct, frozen=True, kw_only=True):
    """A stanza in a package list."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    depends: str = ""
    """The values of Pre-Depends and Depends."""
    provides: str = ""
    base: bool = False
    """Whether the package is essential or has priority required, so that every minimal system has
    it."""
    source: str = MAIN
    by: str = ""


class Atom(Struct, frozen=True):
    """One alternative in a dependency: a package name, with an optional version relation."""

    name: str
    relation: str = ""
    version: str = ""


def parse_packages(text: Iterable[bytes], *, source: str = MAIN, by: str = "") -> Iterator[Package]:
    """Yield the packages listed in the text of a `Packages` file, which is passed in chunks.

    Stanzas without a name, file, hash, valid version or valid size are skipped. A general-purpose
    parser is not used, because it would take a minute for a full list of 60,000 stanzas. Raise
    `ValueError` if there are more than `_MOST` packages or if a stanza has more than `_STANZA`
    bytes.
    """
    for number, stanza in enumerate(_stanzas(text)):
        if number >= _MOST:
            raise ValueError(f"more than {_MOST} packages")
        fields: dict[str, str] = defaultdict(str)
        for key, value in _FIELD.findall(stanza):
            # A policy of ASCII: anything else cannot be a valid name or dependency.
            fields[key.decode()] = value.decode("latin-1").strip()
        if not (fields["Package"] and fields["Filename"] and fields["SHA256"]):
            continue
        if not (_VERSION.fullmatch(fields["Version"]) and _SIZE.fullmatch(fields["Size"])):
            continue
        yield Package(
            name=fields["Package"],
            version=fields["Version"],
            file=fields["Filename"],
            sha256=fields["SHA256"],
            size=int(fields["Size"]),
            depends=f"{fields['Pre-Depends']},{fields['Depends']}",
            provides=fields["Provides"],
            base=fields["Essential"] == "yes" or fields["Priority"] == "required",
            source=source,
            by=by,
        )


def _stanzas(text: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the stanzas in a package list.

    Raise `ValueError` if a stanza has more than `_STANZA` bytes.
    """
    rest = b""
    for piece in text:
        *whole, rest = _EMPTY_LINES.split(rest + piece)
        yield from whole
        if len(rest) > _STANZA:
            raise ValueError(f"the entry of a package has more than {_STANZA} bytes")
    yield rest


def compare(first: str, second: str) -> int:
    """Compare two Debian versions.

    Return a negative number if the first is older, 0 if they are equal, and a positive number if
    the first is newer.
    """
    from debian.debian_support import version_compare

    result: int = version_compare(first, second)
    return result


@lru_cache(maxsize=4096)
def relations(text: str) -> tuple[tuple[Atom, ...], ...]:
    """Parse a dependency field into groups of alternatives.

    The field is satisfied if at least one alternative in each group is satisfied.
    """
    groups = []
    for group in text.split(","):
        atoms = []
        for alternative in group.split("|"):
            match = _ATOM.match(alternative)
            if match and (not match[3] or _VERSION.fullmatch(match[3])):
                atoms.append(Atom(*match.groups("")))
        if atoms:
            groups.append(tuple(atoms))
    return tuple(groups)


_ATOM = re.compile(
    r"\s*([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?\s*$"
)


_RELATIONS = {
    "<<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">>": operator.gt,
}


def satisfies(version: str, atom: Atom) -> bool:
    """Return whether a version meets the version constraint of a dependency alternative."""
    return not atom.relation or _RELATIONS[atom.relation](compare(version, atom.version), 0)


def require(name: str, universe: Mapping[str, Package]) -> Package:
    """Return the package with this name; raise `InvalidError` if the suite does not have it."""
    if name not in universe:
        raise InvalidError(
            f"Debian: the suite has no package '{name}'",
            "Check system_packages, debian_base and debian_suite in the profile.",
        )
    return universe[name]


class _Selection:
    """The packages chosen from a suite, including any dependencies that the base lacks."""

    def __init__(self, universe: Mapping[str, Package], base: frozenset[str] = frozenset()) -> None:
        self.chosen: dict[str, Package] = {}
        self._universe = universe
        self._base = base
        self._providers: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for package in universe.values():
            for atom in _atoms(package.provides):
                self._providers[atom.name].append((package.name, atom.version))

    def add(self, *names: str) -> None:
        """Choose packages and their dependencies, processing the package named last first."""
        queue = [*names]
        while queue:
            name = queue.pop()
            if name in self.chosen:
                continue
            self.chosen[name] = self._universe[name]
            for group in relations(self._universe[name].depends):
                candidates: list[str] = []
                for atom in group:
                    candidates += self.satisfying(atom)
                if not candidates:
                    needs = clipped(" | ".join(a.name for a in group), 300)
                    raise InvalidError(
                        f"Debian: {clipped(name, 100)} needs {needs}, which is not in the suite"
                    )
                if self._base.isdisjoint(candidates) and self.chosen.keys().isdisjoint(candidates):
                    queue.append(candidates[0])

    def satisfying(self, atom: Atom) -> list[str]:
        """Return the names of the packages that satisfy a dependency alternative.

        A package whose own name is the name in the alternative comes first, followed by the
        packages that provide this name.
        """
        names = []
        package = self._universe.get(atom.name)
        if package and satisfies(package.version, atom):
            names.append(package.name)
        for name, version in sorted(self._providers.get(atom.name, ())):
            # An unversioned Provides satisfies only unversioned dependencies.
            if not atom.relation or (version and satisfies(version, atom)):
                names.append(name)
        return names

    def couple(self) -> None:
        """Choose the base packages that must be upgraded together with the chosen packages.

        The base image may have been made from another point release. Therefore, packages that are
        tied to an exact version are installed as well, so that running `dpkg -i` on all chosen
        packages breaks nothing. Lower bounds need no such treatment: the versions in a released
        suite only increase, so every base made from the suite satisfies these bounds.
        """
        while more := sorted((self._needed() | self._broken()) & (self._base - self.chosen.keys())):
            for name in more:
                self.add(name)

    def _needed(self) -> set[str]:
        """Return the names of the packages that chosen packages require in an exact version.

        The base may contain different versions of these packages.
        """
        names: set[str] = set()
        for package in self.chosen.values():
            for atom in _atoms(package.depends):
                if atom.relation == "=":
                    names.update(self.satisfying(atom)[:1])
        return names

    def _broken(self) -> set[str]:
        """Return the names of the base packages that require an exact version of a chosen package.

        These base packages would break if the chosen package were installed in a different version.
        """
        moved = self._base & self.chosen.keys()
        names: set[str] = set()
        for name in self._base:
            for atom in _atoms(self._universe[name].depends):
                if atom.name in moved and atom.relation == "=":
                    names.add(name)
        return names


def _atoms(text: str) -> Iterator[Atom]:
    return chain.from_iterable(relations(text))


def minimal(universe: Mapping[str, Package], names: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of the packages in a minimal system that also includes `names`.

    A minimal system consists of all packages that are essential or have priority "required", and
    their dependencies. The dependencies of `names` are included too. Raise `InvalidError` if a
    package in `names` does not exist or if a dependency cannot be satisfied.
    """
    # The last one is chosen first: `usr-is-merged`. Tools that bootstrap a system prefer it, if it
    # exists, to its alternative `usrmerge`, which brings perl.
    queue = sorted(p.name for p in universe.values() if p.base)
    queue += [require(name, universe).name for name in names]
    if "usr-is-merged" in universe:
        queue.append("usr-is-merged")
    selection = _Selection(universe)
    selection.add(*queue)
    return frozenset(selection.chosen)


def closure(
    names: Sequence[str],
    universe: Mapping[str, Package],
    base: frozenset[str] = frozenset(),
) -> tuple[Package, ...]:
    """Return the packages that must be installed to add `names` to a base system.

    `base` contains the names of the packages that the base system already has; these are not chosen
    again. If `base` is empty, the result fits any minimal system of the suite. If a package has
    been renamed in a newer suite, the package that provides the old name is chosen. Raise
    `InvalidError` for unknown packages.
    """
    selection = _Selection(universe, base or minimal(universe))
    for name in names:
        if name not in base:
            present = next(iter(selection.satisfying(Atom(name))), name)
            selection.add(require(present, universe).name)
    if not base:  # a base made of this universe has these versions already
        selection.couple()
    return tuple(selection.chosen.values())


_LARGEST = 128 << 20
"""Maximum size in bytes of a mirror's list after decompression. Debian's largest list has 60
million bytes."""
ARCHITECTURES: dict[str, str] = {"linux/amd64": "amd64", "linux/arm64": "arm64"}


Universe = dict[str, Package]
"""The packages of a suite for a platform, including updates and security fixes: name → the newest
version of the package."""


def lock(
    names: Sequence[str], suite: Universe, base: frozenset[str] = frozenset()
) -> tuple[File, ...]:
    """Return the .debs that add `names` to a base system, sorted by package name.

    `base` contains the names of the packages in the base system, which `lock_base` chose from the
    same package lists. If `base` is empty, the result fits any minimal system of the suite. Raise
    `InvalidError` for unavailable packages.
    """
    chosen = closure(names, suite, base)
    return tuple(map(_file, sorted(chosen, key=lambda p: p.name)))


def lock_base(names: Sequence[str], suite: Universe) -> tuple[File, ...]:
    """Return the .debs of a minimal system that includes `names`, sorted by package name.

    All dependencies are included. Each .deb has the role `base`.
    """
    chosen = minimal(suite, names)
    return tuple(_file(suite[name], "base") for name in sorted(chosen))


def _file(package: Package, role: types.Role = "") -> File:
    try:
        return decoding.convert(
            {
                "kind": "deb",
                "name": package.name,
                "version": package.version,
                "file": package.file,
                "sha256": package.sha256,
                "size": package.size,
                "source": package.source,
                "provenance": "read",
                "by": package.by,
                "role": role,
            },
            File,
        )
    except msgspec.ValidationError as error:
        raise BuildError(
            f"Debian's package list has an invalid entry: {package.file!r}: {error}"
        ) from error


def _read(url: str) -> bytes:
    with open_session() as session, request(session, "GET", url) as response:
        response.raise_for_status()
        return read(response)


def load(
    suite: str,
    platform: str,
    settings: Settings,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    read: Callable[[str], bytes] = _read,
) -> Universe:
    """Read the package lists of a suite for a platform, and return the packages by name.

    Raise `BuildError` if no mirror answers or if a list is damaged, and `InvalidError` if Debian
    has no packages for the platform.
    """
    if platform not in ARCHITECTURES:
        raise InvalidError(f"{platform}: only Linux platforms can have Debian packages")
    architecture = ARCHITECTURES[platform]
    on_progress(f"reading Debian {suite}'s package lists for {platform}")
    universe: Universe = {}
    for name, source in (
        (suite, MAIN),
        (f"{suite}-updates", MAIN),
        (f"{suite}-security", SECURITY),
    ):
        release = _release(name, source, settings, read, required=name == suite)
        if release is None:
            continue
        root, text = release
        fields = mirrors.fields(text)
        by = f"{name} Release of {_date(fields.get('Date', ''))}"
        path = f"main/binary-{architecture}/Packages.xz"
        try:
            raw = read(f"{root}/dists/{name}/{path}")
        except OSError as error:
            raise BuildError(
                f"the Debian mirror does not serve dists/{name}/{path}: {reason(error)}"
            ) from error
        _verify(raw, text, path, name)
        pieces = archives.pieces(archives.unpacked(io.BytesIO(raw)), _LARGEST)
        try:
            for package in parse_packages(pieces, source=source, by=by):
                current = universe.get(package.name)
                if current is None or compare(package.version, current.version) > 0:
                    universe[package.name] = package
        except archives.faults() as error:
            raise BuildError(
                f"Debian {name}: {path} cannot be read: {clipped(str(error), 200)}"
            ) from error
    return universe


def _release(
    name: str, source: str, settings: Settings, read: Callable[[str], bytes], *, required: bool
) -> tuple[str, str] | None:
    problem: Exception | None = None
    for root in mirrors.roots(source, settings):
        try:
            return root, read(f"{root}/dists/{name}/Release").decode("utf-8", "replace")
        except OSError as error:
            problem = error
    if required:
        cause = reason(problem) if problem else "there is none"
        raise BuildError(
            f"no Debian mirror answers for the suite {name} ({cause})",
            f"Set {indexes.variable(source)} to the URL of a mirror.",
        )
    return None


def _verify(raw: bytes, release: str, path: str, suite: str) -> None:
    matched = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(path)}$", release, re.MULTILINE)
    if matched is None:
        raise BuildError(f"Debian {suite}: the Release file does not list {path}")
    actual = hashlib.sha256(raw).hexdigest()
    if actual != matched[1]:
        raise BuildError(
            f"Debian {suite}: {path} has sha256 {actual}, but the Release file lists {matched[1]}",
            "The mirror may be updating, or its files were altered. Try again later, or use"
            " another mirror.",
        )


def _date(text: str) -> str:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return "an unknown date"


# The Debian base of a target: an image that the profile names, or a system made of Debian packages
# (`debian_base`), all of which are in the lock. The packages to install fit any minimal system of
# the suite, or that made one; what an image has installed is never read, so that the lock does not
# depend on it.


class Suites:
    """A cache of the suites that a command reads.

    Failures are cached as well, so a suite that could not be read is not requested again.
    """

    def __init__(self, settings: Settings, on_progress: Callable[[str], None]) -> None:
        self.settings = settings
        self.note = lru_cache(on_progress)  # once for all locks
        self._reading = threading.Lock()
        self._read: dict[tuple[str, str], Universe | BuildError] = {}

    def of(self, name: str, platform: str) -> Universe:
        """Return a suite for a platform; raise the same errors as `load`."""
        key = (name, platform)
        with self._reading:
            if key not in self._read:
                try:
                    self._read[key] = load(*key, self.settings, self.note)
                except BuildError as error:
                    self._read[key] = error
        suite = self._read[key]
        if isinstance(suite, BuildError):
            raise suite
        return suite


_Names = dict[str, tuple[str, ...]]
"""Debian package → the wheels that need it. For a package that the profile itself lists, the tuple
of wheels is empty."""


class Debs:
    """A provider of the base system and the .debs for each target of a profile.

    Both are taken from the `previous` lock if the profile has not changed since that lock was made.
    Otherwise, they are taken from the lock of the profile's `origin`, provided that both profiles
    define the same system. If neither lock can be used, they are chosen from the suite.
    """

    def __init__(
        self,
        profile: Profile,
        suites: Suites,
        previous: Lock | None,
        origin: tuple[Profile, Lock] | None = None,
    ) -> None:
        self._profile = profile
        self._suites = suites
        self._store = Store.of(suites.settings)
        self._last = previous
        fresh = previous is not None and previous.inputs == inputs_digest(profile)
        of_origin = origin[1] if origin and _is_same_system(profile, origin[0]) else None
        # A suite has only its newest versions, so there is no intermediate version to prefer:
        # packages are either kept as they are or chosen again.
        self._previous = previous if fresh else of_origin
        self._origin = origin
        self._closures: dict[tuple[str, ...], tuple[File, ...]] = {}

    def of(
        self, platform: types.Platform, python: types.PythonVersion, wheels: Iterable[File] = ()
    ) -> Target:
        """Return a target with its base and .debs; a target that is not for Linux has neither.

        The Debian packages that `wheels` need in an image are added if they are known and available
        from a mirror.
        """
        asked: _Names = dict.fromkeys(self._profile.system_packages, ())
        needs = {**self._needs(platform, python, wheels), **asked}
        if len(needs) > len(asked):
            try:
                return self._with(platform, python, needs)
            except (BuildError, InvalidError) as error:
                names = ", ".join(name for name, by in needs.items() if by)
                self._suites.note(f"note: images lack {names}: {error.message}. {error.hint}")
        return self._with(platform, python, asked)

    def _needs(self, platform: types.Platform, python: str, wheels: Iterable[File]) -> _Names:
        """Return the Debian packages that wheels need in the image for a target.

        The result is empty if no packages can be added to the image.
        """
        image = base(self._profile, platform, python, ())
        if image is None or image.unpacked or not self._profile.debian_suite:
            return {}
        last = target_of(self._last, platform, python)
        earlier = last.system_packages if last else {}
        return libraries.of_image(self._profile, wheels, self._store, earlier)

    def _with(self, platform: types.Platform, python: types.PythonVersion, asked: _Names) -> Target:
        """Return a target with its base and the requested packages.

        If an earlier lock still applies, its base and packages are reused.
        """
        profile = self._profile
        has_base = python in profile.debian_base
        # Without an image, .debs are only unpacked to get a library to preload.
        has_debs = has_base or (asked and (python in profile.base or profile.preload))
        files: tuple[File, ...] = ()
        if has_debs and platform.startswith("linux/"):
            if before := self._unchanged(platform, python, asked):
                files = (*before.base_files, *before.of_kind("deb"))
                asked = {**before.system_packages, **asked}
            else:
                choose = self._of_packages if has_base else self._on_image
                files = choose(platform, python, asked)
        return Target(
            platform=platform,
            python=python,
            base=base(profile, platform, python, files),
            files=files,
            system_packages=asked if any(asked.values()) else {},
        )

    def _unchanged(self, platform: str, python: str, asked: _Names) -> Target | None:
        """Return an earlier lock's target if that target has the requested packages, else None."""
        before = target_of(self._previous, platform, python)
        if before:
            have = {*self._profile.system_packages, *(file.name for file in before.files)}
            if asked.keys() <= have | before.system_packages.keys():
                return before
        last = target_of(self._last, platform, python)
        if last and last.system_packages.keys() == asked.keys() and is_current(self._profile, last):
            return last
        return None

    def _of_packages(
        self, platform: types.Platform, python: types.PythonVersion, asked: _Names
    ) -> tuple[File, ...]:
        """Return the .debs that make up a base, followed by the .debs to install on it."""
        debian_suite = self._suite(platform)
        system = lock_base(self._profile.debian_base[python].include, debian_suite)
        if not any(f.name == f"python{python}" for f in system):
            raise InvalidError(
                f"profile '{self._profile.name}': debian_base.{python}: the package"
                f" python{python} is missing",
                f"Add python{python}, or python3 if this is the suite's default Python version.",
            )
        names = frozenset(f.name for f in system)
        return (*system, *lock(tuple(asked), debian_suite, names))

    def _on_image(self, platform: types.Platform, _: str, asked: _Names) -> tuple[File, ...]:
        """Return the .debs to install on a base image.

        All images for the same platform get the same .debs.
        """
        key = (platform, *asked)
        if key not in self._closures:
            of_origin = () if any(asked.values()) else self._of_origin(platform)
            self._closures[key] = of_origin or lock(tuple(asked), self._suite(platform))
        return self._closures[key]

    def _of_origin(self, platform: types.Platform) -> tuple[File, ...]:
        """Return the .debs that the origin profile's lock has for base images on this platform.

        The result is empty if there is no origin profile or if the origin profile requests
        different packages.
        """
        if self._origin is None:
            return ()
        other, locked = self._origin
        if other.debian_base or not _asks_for_same(self._profile, other):
            return ()
        for target in locked.targets:
            if target.platform == platform and target.base and (debs := target.of_kind("deb")):
                return debs
        return ()

    def _suite(self, platform: str) -> Universe:
        return self._suites.of(self._profile.debian_suite, platform)


def base(
    profile: Profile,
    platform: types.Platform,
    python: types.PythonVersion,
    debs: Sequence[File],
) -> LockedBase | None:
    """Return the base that a profile and .debs determine for a target, or None if there is no base.

    If Python is installed from a Debian package, that package determines Python's version. This
    function is pure.
    """
    if not platform.startswith("linux/"):
        return None
    versions = {f.name: f.version for f in debs}
    packaged = versions.get(f"python{python}", "").partition("-")[0]
    if python in profile.debian_base:
        system = [f for f in debs if f.role == "base"]
        unpacked = platform in profile.debian_base[python].unpacked
        digest = hashlib.sha256("".join(sorted(f.sha256 for f in system)).encode()).hexdigest()
        kind = "unpacked-" if unpacked else ""
        return LockedBase(
            ref=f"envbuilder/debian:{profile.debian_suite}-{kind}{digest[:12]}",
            digest=None,
            date=max(map(mirrors.seen, system), default="")[:10] or None,
            python_path=f"/usr/bin/python{python}",
            python_version=packaged,
            suite=profile.debian_suite,
            unpacked=unpacked,
        )
    image = profile.base.get(python)
    if image is None:
        return None
    return LockedBase(
        ref=image.ref,
        digest=image.digest,
        date=image.date,
        python_path=image.python_path,
        python_version=image.python_version or packaged,
    )


def _is_same_system(profile: Profile, other: Profile) -> bool:
    """Return whether two profiles have the same base and .debs for the targets that they share."""
    return (
        _asks_for_same(profile, other)
        and profile.base.items() <= other.base.items()
        and profile.debian_base.items() <= other.debian_base.items()
    )


def _asks_for_same(profile: Profile, other: Profile) -> bool:
    """Return whether two profiles request the same packages from the same suite."""
    keys = ("debian_suite", "system_packages", "preload")
    return all(getattr(profile, key) == getattr(other, key) for key in keys)


def is_current(profile: Profile, target: Target) -> bool:
    """Return whether the profile and the .debs still determine the base that a target has."""
    debs = (*target.base_files, *target.of_kind("deb"))
    return target.base == base(profile, target.platform, target.python, debs)
