"""Debian packages as data: parse package lists, and resolve dependencies."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from msgspec import Struct

from envbuilder.core.errors import InvalidError, clipped
from envbuilder.profiles.lock import MAIN

_FIELD = re.compile(
    rb"^(Package|Version|Depends|Pre-Depends|Provides|Breaks|Essential|Priority|Filename|Size"
    rb"|SHA256):(.*)$",
    re.MULTILINE,
)
_EMPTY_LINES = re.compile(rb"\n[ \t\r]*\n\s*")
_VERSION = re.compile(r"[0-9]{1,9}:[A-Za-z0-9.+:~-]{1,256}|[A-Za-z0-9.+~-]{1,256}", re.ASCII)
"""What can be compared; Debian's policy is stricter. Only after an epoch may there be a colon."""
_SIZE = re.compile(r"[0-9]{1,15}", re.ASCII)
_MOST = 200_000
"""Maximum number of packages in a list; Debian's have 70,000."""
_STANZA = 1 << 20
"""Maximum bytes of one package's stanza; the largest have 30,000."""


class Package(Struct, frozen=True, kw_only=True):
    """One stanza of a package list."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    depends: str = ""
    """Including Pre-Depends."""
    provides: str = ""
    breaks: str = ""
    base: bool = False
    """Essential, or of priority required: part of every minimal system."""
    source: str = MAIN
    by: str = ""


class Atom(Struct, frozen=True):
    """One alternative of a dependency: a name and, if stated, a version relation."""

    name: str
    relation: str = ""
    version: str = ""


def parse_packages(text: Iterable[bytes], *, source: str = MAIN, by: str = "") -> Iterator[Package]:
    """Yield the packages of a `Packages` list, which comes in pieces.

    Stanzas without a name, a file, a hash, or a valid version and size are left out. A full list
    has 60,000 stanzas, which take a general parser a minute. Raise `ValueError` if it has more than
    `_MOST`, or a stanza has more than `_STANZA` bytes.
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
            breaks=fields["Breaks"],
            base=fields["Essential"] == "yes" or fields["Priority"] == "required",
            source=source,
            by=by,
        )


def _stanzas(text: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the stanzas of a list."""
    rest = b""
    for piece in text:
        *whole, rest = _EMPTY_LINES.split(rest + piece)
        yield from whole
        if len(rest) > _STANZA:
            raise ValueError(f"a package with more than {_STANZA} bytes")
    yield rest


def keep_newest(universe: dict[str, Package], packages: Iterable[Package]) -> None:
    """Add packages to those known by name; the newer version wins."""
    for package in packages:
        current = universe.get(package.name)
        if current is None or compare(package.version, current.version) > 0:
            universe[package.name] = package


def compare(first: str, second: str) -> int:
    """Compare two Debian versions: negative, 0 or positive."""
    from debian.debian_support import version_compare

    result: int = version_compare(first, second)
    return result


@lru_cache(maxsize=4096)
def relations(text: str) -> tuple[tuple[Atom, ...], ...]:
    """Parse a dependency field: all groups are needed, any alternative within a group suffices."""
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
    """Return whether a version satisfies an alternative."""
    return not atom.relation or _RELATIONS[atom.relation](compare(version, atom.version), 0)


def require(name: str, universe: Mapping[str, Package]) -> Package:
    """Return a package of a suite; raise `InvalidError` if the suite has none of that name."""
    if name not in universe:
        raise InvalidError(
            f"Debian: the suite has no package '{name}'",
            "Check system_packages, debian_base and debian_suite in the profile.",
        )
    return universe[name]


def _lacking(name: str, group: Iterable[Atom]) -> InvalidError:
    needs = clipped(" | ".join(a.name for a in group), 300)
    return InvalidError(f"Debian: {clipped(name, 100)} needs {needs}, which the suite lacks")


class _Selection:
    """Packages of a suite with all their dependencies beyond a base."""

    def __init__(self, universe: Mapping[str, Package], base: frozenset[str] = frozenset()) -> None:
        self.chosen: dict[str, Package] = {}
        self._universe = universe
        self._base = base
        self._providers: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for package in universe.values():
            for atom in _atoms(package.provides):
                self._providers[atom.name].append((package.name, atom.version))

    def add(self, *names: str) -> None:
        """Choose packages, the last one first, and what they depend on."""
        queue = [*names]
        while queue:
            name = queue.pop()
            if name in self.chosen:
                continue
            self.chosen[name] = self._universe[name]
            for group in relations(self._universe[name].depends):
                candidates: list[str] = []
                for atom in group:
                    candidates += self._satisfying(atom)
                if not candidates:
                    raise _lacking(name, group)
                if self._base.isdisjoint(candidates) and self.chosen.keys().isdisjoint(candidates):
                    queue.append(candidates[0])

    def _satisfying(self, atom: Atom) -> list[str]:
        """Return the packages that satisfy an alternative: the one so named, then providers."""
        names = []
        package = self._universe.get(atom.name)
        if package and satisfies(package.version, atom):
            names.append(package.name)
        for name, version in sorted(self._providers.get(atom.name, ())):
            # An unversioned Provides satisfies only unversioned dependencies.
            if not atom.relation or (version and satisfies(version, atom)):
                names.append(name)
        return names

    def couple(self, *, rolling: bool) -> None:
        """Add the packages of a minimal system that must be upgraded with the chosen ones.

        A base image may come from another point release. Packages tied to an exact version are
        therefore installed as well, so that `dpkg -i` of the set breaks nothing.
        """
        while True:
            tied = self._needed(rolling=rolling) | self._broken(rolling=rolling)
            more = sorted(tied & self._base - self.chosen.keys())
            if not more:
                return
            for name in more:
                self.add(name)

    def _needed(self, *, rolling: bool) -> set[str]:
        """Return packages that a chosen package needs in a version that the base may lack."""
        # A released suite only grows, so a lower bound is satisfied by every base made from it.
        # Testing moves: the base may be older than any bound.
        tight = {"=", ">=", ">>"} if rolling else {"="}
        names: set[str] = set()
        for package in self.chosen.values():
            for atom in _atoms(package.depends):
                if atom.relation in tight:
                    names.update(self._satisfying(atom)[:1])
        return names

    def _broken(self, *, rolling: bool) -> set[str]:
        """Return packages that would break if a chosen base package changed its version."""
        moved = self._base & self.chosen.keys()
        tight = {"=", "<<", "<="} if rolling else {"="}
        names: set[str] = set()
        for name in self._base:
            for atom in _atoms(self._universe[name].depends):
                if atom.name in moved and atom.relation in tight:
                    names.add(name)
        if rolling:
            for package in self.chosen.values():
                names.update(atom.name for atom in _atoms(package.breaks))
        return names


def _atoms(text: str) -> Iterator[Atom]:
    return chain.from_iterable(relations(text))


def minimal(universe: Mapping[str, Package], names: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a minimal system, the packages `names`, and all their dependencies.

    A minimal system is the essential packages and those of priority required. Raise `InvalidError`
    for a package of `names` that does not exist, or for dependencies that cannot be satisfied.
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
    *,
    rolling: bool = False,
) -> tuple[Package, ...]:
    """Return the packages to install for `names` on any minimal system.

    `base` names the packages of a larger system made of this very universe: none of them is chosen
    again. Raise `InvalidError` for unknown packages.
    """
    selection = _Selection(universe, base or minimal(universe))
    for name in names:
        if name not in base:
            selection.add(require(name, universe).name)
    if not base:  # a base made of this universe has these versions already
        selection.couple(rolling=rolling)
    return tuple(selection.chosen.values())
