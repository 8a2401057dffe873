"""Debian packages as data: reading package lists, and which packages others need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.archives import MAIN
from envbuilder.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_KEYS = frozenset(
    {"Package", "Version", "Depends", "Pre-Depends", "Provides", "Breaks", "Essential", "Priority",
     "Filename", "Size", "SHA256"}
)  # fmt: skip


class Package(Struct, frozen=True, kw_only=True):
    """One stanza of a package list."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    depends: str = ""
    provides: str = ""
    breaks: str = ""
    base: bool = False
    """Essential, or of priority required: part of every minimal system."""
    source: str = MAIN
    by: str = ""


class Atom(Struct, frozen=True):
    """One alternative of a dependency: a name and, where stated, a relation to a version."""

    name: str
    relation: str = ""
    version: str = ""


def parse_packages(text: str, *, source: str = MAIN, by: str = "") -> Iterator[Package]:
    """The packages of a `Packages` list.

    Stanzas without a name, version, file, size or hash are left out. A full list has 60,000
    stanzas, which a general parser takes a minute for.
    """
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        for line in stanza.split("\n"):
            key, colon, value = line.partition(":")
            if colon and key in _KEYS:
                fields[key] = value.strip()
        needed = [fields.get(k, "") for k in ("Package", "Version", "Filename", "SHA256", "Size")]
        if not all(needed) or not needed[4].isdecimal():
            continue
        depends = (fields.get("Pre-Depends", ""), fields.get("Depends", ""))
        yield Package(
            name=needed[0],
            version=needed[1],
            file=needed[2],
            sha256=needed[3],
            size=int(needed[4]),
            depends=", ".join(d for d in depends if d),
            provides=fields.get("Provides", ""),
            breaks=fields.get("Breaks", ""),
            base=fields.get("Essential") == "yes" or fields.get("Priority") == "required",
            source=source,
            by=by,
        )


def keep_newest(universe: dict[str, Package], packages: Iterable[Package]) -> None:
    """Add packages to those known by name, the newer version winning."""
    for package in packages:
        known = universe.get(package.name)
        if known is None or compare(package.version, known.version) > 0:
            universe[package.name] = package


def compare(one: str, other: str) -> int:
    """Order of two Debian versions: negative, 0 or positive."""
    from debian.debian_support import version_compare

    result: int = version_compare(one, other)
    return result


def relations(text: str) -> tuple[tuple[Atom, ...], ...]:
    """A dependency field: all groups are needed, any alternative within a group will do."""
    groups = []
    for group in filter(None, (g.strip() for g in text.split(","))):
        atoms = []
        for alternative in group.split("|"):
            found = _ATOM.match(alternative)
            if found:
                atoms.append(Atom(found[1], found[2] or "", found[3] or ""))
        if atoms:
            groups.append(tuple(atoms))
    return tuple(groups)


_ATOM = re.compile(
    r"\s*([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?\s*$"
)


def satisfies(version: str, atom: Atom) -> bool:
    """Whether a version fulfils an alternative."""
    if not atom.relation:
        return True
    order = compare(version, atom.version)
    return {
        "<<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">>": order > 0,
    }[atom.relation]  # fmt: skip


class _Closure:
    """Collects packages until nothing is missing."""

    def __init__(self, universe: Mapping[str, Package], *, rolling: bool) -> None:
        self.universe = universe
        self.rolling = rolling
        self.chosen: dict[str, Package] = {}
        self.providers: dict[str, list[tuple[str, str]]] = {}
        for package in universe.values():
            for group in relations(package.provides):
                for atom in group:
                    entry = (package.name, atom.version)
                    self.providers.setdefault(atom.name, []).append(entry)
        self.base = frozenset(self._base())

    def _base(self) -> set[str]:
        """Names of a minimal system: essential and required packages and what they need."""
        found: set[str] = set()
        queue = sorted(p.name for p in self.universe.values() if p.base)
        while queue:
            name = queue.pop()
            if name in found:
                continue
            found.add(name)
            for group in relations(self.universe[name].depends):
                if not any(p in found for a in group for p in self._answers(a)):
                    queue += self._pick(group)
        return found

    def _answers(self, atom: Atom) -> list[str]:
        """The packages that fulfil an alternative: the one so named first, then its providers."""
        found = []
        own = self.universe.get(atom.name)
        if own and satisfies(own.version, atom):
            found.append(own.name)
        for name, version in sorted(self.providers.get(atom.name, ())):
            # An unversioned Provides fulfils only unversioned needs.
            if not atom.relation or (version and satisfies(version, atom)):
                found.append(name)
        return found

    def _pick(self, group: tuple[Atom, ...]) -> list[str]:
        """The first package that fulfils a group, as a list of at most one."""
        return next(([n[0]] for a in group if (n := self._answers(a))), [])

    def add(self, name: str) -> None:
        """Choose a package and everything it needs beyond the minimal system."""
        queue = [name]
        while queue:
            current = queue.pop()
            if current in self.chosen:
                continue
            package = self.chosen[current] = self.universe[current]
            for group in relations(package.depends):
                names = [n for a in group for n in self._answers(a)]
                if not names:
                    wanted = " | ".join(a.name for a in group)
                    raise InvalidError(f"Debian: {current} needs {wanted}, which the suite lacks")
                if not any(n in self.base or n in self.chosen for n in names):
                    queue.append(names[0])

    def couple(self) -> None:
        """Add the packages of the minimal system that must move together with the chosen ones.

        A base image may come from another point release. What is tied to an exact version there is
        therefore installed as well, so that `dpkg -i` of the set leaves nothing broken.
        """
        while True:
            more = sorted(self._forward() | self._backward())
            if not more:
                return
            for name in more:
                self.add(name)

    def _forward(self) -> set[str]:
        """Base packages that a chosen one needs in a version that the base may not have."""
        # A released suite only grows, so a lower bound holds on every base made from it. Testing
        # moves: the base may be older than any bound.
        tight = {"=", ">=", ">>"} if self.rolling else {"="}
        return {
            name
            for package in self.chosen.values()
            for group in relations(package.depends)
            for atom in group
            if atom.relation in tight
            for name in self._answers(atom)[:1]
            if name in self.base and name not in self.chosen
        }

    def _backward(self) -> set[str]:
        """Base packages that would break when a chosen package of the base changes its version."""
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
    wanted: Sequence[str], universe: Mapping[str, Package], *, rolling: bool = False
) -> tuple[Package, ...]:
    """The packages to install for `wanted` on a minimal system; `InvalidError` for unknown ones."""
    found = _Closure(universe, rolling=rolling)
    for name in wanted:
        if name not in universe:
            raise InvalidError(
                f"Debian: the suite has no package '{name}'",
                "Check system_packages and debian_suite in the profile.",
            )
        found.add(name)
    found.couple()
    return tuple(found.chosen.values())
