"""Debian packages as data: parse package lists, and resolve dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import clipped
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
        # A policy of ASCII: anything else cannot be a valid name or dependency.
        fields = {k.decode(): v.decode("latin-1").strip() for k, v in _FIELD.findall(stanza)}
        needed = [fields.get(k, "") for k in ("Package", "Version", "Filename", "SHA256", "Size")]
        if not (_VERSION.fullmatch(needed[1]) and all(needed) and _SIZE.fullmatch(needed[4])):
            continue
        yield Package(
            name=needed[0],
            version=needed[1],
            file=needed[2],
            sha256=needed[3],
            size=int(needed[4]),
            depends=", ".join(filter(None, map(fields.get, ("Pre-Depends", "Depends")))),
            provides=fields.get("Provides", ""),
            breaks=fields.get("Breaks", ""),
            base=fields.get("Essential") == "yes" or fields.get("Priority") == "required",
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
    for group in filter(None, (g.strip() for g in text.split(","))):
        atoms = []
        for alternative in group.split("|"):
            match = _ATOM.match(alternative)
            if match and (not match[3] or _VERSION.fullmatch(match[3])):
                atoms.append(Atom(match[1], match[2] or "", match[3] or ""))
        if atoms:
            groups.append(tuple(atoms))
    return tuple(groups)


_ATOM = re.compile(
    r"\s*([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?\s*$"
)


def satisfies(version: str, atom: Atom) -> bool:
    """Return whether a version satisfies an alternative."""
    if not atom.relation:
        return True
    order = compare(version, atom.version)
    return {
        "<<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">>": order > 0,
    }[atom.relation]  # fmt: skip


class Offered:
    """A set of packages by name, and which of them satisfy a dependency."""

    def __init__(self, packages: Mapping[str, Package]) -> None:
        self._packages = packages
        self._providers: dict[str, list[tuple[str, str]]] = {}
        for package in packages.values():
            for group in relations(package.provides):
                for atom in group:
                    entry = (package.name, atom.version)
                    self._providers.setdefault(atom.name, []).append(entry)

    def answers(self, atom: Atom) -> list[str]:
        """Return the packages that satisfy an alternative: the one so named, then providers."""
        names = []
        package = self._packages.get(atom.name)
        if package and satisfies(package.version, atom):
            names.append(package.name)
        for name, version in sorted(self._providers.get(atom.name, ())):
            # An unversioned Provides satisfies only unversioned dependencies.
            if not atom.relation or (version and satisfies(version, atom)):
                names.append(name)
        return names

    def among(self, group: Iterable[Atom]) -> list[str]:
        """Return the packages that satisfy any alternative of a group, in the group's order."""
        return [name for atom in group for name in self.answers(atom)]


def minimal(universe: Mapping[str, Package], names: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a minimal system, the packages `names`, and all their dependencies.

    A minimal system is the essential packages and those of priority required. Raise `InvalidError`
    for a package of `names` that does not exist, or for dependencies that cannot be satisfied.
    """
    # The queue is popped from its end, so `usr-is-merged` comes first. Tools that bootstrap a
    # system prefer it, if it exists, to its alternative `usrmerge`, which brings perl.
    queue = sorted(p.name for p in universe.values() if p.base)
    queue += [require(name, universe).name for name in names]
    queue += [name for name in ("usr-is-merged",) if name in universe]
    chosen: dict[str, Package] = {}
    _choose(queue, chosen, Offered(universe), universe)
    return frozenset(chosen)


def _choose(
    queue: list[str],
    chosen: dict[str, Package],
    offered: Offered,
    universe: Mapping[str, Package],
    base: frozenset[str] = frozenset(),
) -> None:
    """Add the packages of a queue, and all their dependencies beyond the base, to the chosen."""
    while queue:
        name = queue.pop()
        if name in chosen:
            continue
        package = chosen[name] = universe[name]
        for group in relations(package.depends):
            candidates = offered.among(group)
            if not candidates:
                raise _lacking(name, group)
            if not any(each in base or each in chosen for each in candidates):
                queue.append(candidates[0])


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


class _Closure:
    """The packages to install so that nothing is missing on a base."""

    def __init__(
        self, universe: Mapping[str, Package], base: frozenset[str], *, rolling: bool
    ) -> None:
        self.universe = universe
        self.rolling = rolling
        self.chosen: dict[str, Package] = {}
        self.offered = Offered(universe)
        self.base = base

    def add(self, name: str) -> None:
        """Choose a package and all its dependencies beyond the base."""
        _choose([name], self.chosen, self.offered, self.universe, self.base)

    def couple(self) -> None:
        """Add the packages of a minimal system that must be upgraded with the chosen ones.

        A base image may come from another point release. Packages tied to an exact version are
        therefore installed as well, so that `dpkg -i` of the set breaks nothing.
        """
        while True:
            more = sorted(self._forward() | self._backward())
            if not more:
                return
            for name in more:
                self.add(name)

    def _forward(self) -> set[str]:
        """Return base packages that a chosen package needs in a version that the base may lack."""
        # A released suite only grows, so a lower bound is satisfied by every base made from it.
        # Testing moves: the base may be older than any bound.
        tight = {"=", ">=", ">>"} if self.rolling else {"="}
        return {
            name
            for package in self.chosen.values()
            for group in relations(package.depends)
            for atom in group
            if atom.relation in tight
            for name in self.offered.answers(atom)[:1]
            if name in self.base and name not in self.chosen
        }

    def _backward(self) -> set[str]:
        """Return base packages that would break if a chosen base package changed its version."""
        moved = {n for n in self.chosen if n in self.base}
        tight = {"=", "<<", "<="} if self.rolling else {"="}
        tied = {
            name
            for name in self.base - self.chosen.keys()
            for group in relations(self.universe[name].depends)
            for atom in group
            if atom.name in moved and atom.relation in tight
        }
        if self.rolling:
            tied |= {
                atom.name
                for package in self.chosen.values()
                for group in relations(package.breaks)
                for atom in group
                if atom.name in self.base and atom.name not in self.chosen
            }
        return tied


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
    result = _Closure(universe, base or minimal(universe), rolling=rolling)
    for name in names:
        if name not in base:
            result.add(require(name, universe).name)
    if not base:  # a base made of this universe has these versions already
        result.couple()
    return tuple(result.chosen.values())
