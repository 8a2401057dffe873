"""Resolve which packages to install on a given base, whose own packages are known.

A package that the base has in a sufficient version is not added. A package that must be newer is
upgraded, and so is every package that this upgrade would break. If adding and upgrading cannot
solve it, that is an error: packages are never removed and never downgraded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian.package import (
    Atom,
    Offered,
    Package,
    Stanza,
    compare,
    relations,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_HINT = (
    "The base and the suite do not go together: use a newer base image, or change system_packages"
    " and debian_suite in the profile."
)


def on_base(
    wanted: Sequence[str],
    universe: Mapping[str, Package],
    installed: Mapping[str, Stanza],
    listed: Iterable[str] = (),
) -> tuple[Package, ...]:
    """Return the packages to install for `wanted` on a base, in the order they were chosen.

    `listed` are included even if the base has them, unless it has them in a newer version: a native
    environment, which has no base, takes its libraries from the same list. Raise `InvalidError` for
    a package that the suite lacks, and for conflicts.
    """
    found = _OnBase(universe, installed)
    for name in listed:
        package, have = require(name, universe), installed.get(name)
        if have is None or compare(package.version, have.version) >= 0:
            found.choose(package)
    for name in wanted:
        if not found.now.answers(Atom(name)):
            found.choose(require(name, universe))
    while found.mend():
        pass
    return tuple(found.chosen.values())


class _OnBase:
    """A base with the packages chosen so far, and the unresolved problems of the two together."""

    def __init__(self, universe: Mapping[str, Package], installed: Mapping[str, Stanza]) -> None:
        self.universe, self.installed = universe, installed
        self.offered = Offered(universe)
        self.chosen: dict[str, Package] = {}
        self.now = Offered(installed)
        # Dependencies that were broken in the base before are not fixed here.
        self.broken = {
            (stanza.name, group)
            for stanza in installed.values()
            for group in relations(stanza.depends)
            if not self.now.among(group)
        }

    def choose(self, package: Package) -> None:
        """Install or upgrade a package."""
        self.chosen[package.name] = package
        self.now = Offered({**self.installed, **self.chosen})

    def all(self) -> Iterator[Stanza]:
        """Yield everything that would be installed, chosen packages first, in a fixed order."""
        yield from tuple(self.chosen.values())
        yield from (s for n, s in sorted(self.installed.items()) if n not in self.chosen)

    def mend(self) -> bool:
        """Fix one problem; return False if there is none."""
        for stanza in self.all():
            for group in relations(stanza.depends):
                if not self.now.among(group) and not self._was_broken(stanza, group):
                    self._provide(stanza, group)
                    return True
        for stanza in self.all():
            for atom in _refused(stanza):
                for name in self.now.answers(atom):
                    chosen = {stanza.name, name} & self.chosen.keys()
                    # Conflicts between two packages of the base existed before.
                    if name != stanza.name and chosen:
                        self._part(stanza, name, atom)
                        return True
        return False

    def _was_broken(self, stanza: Stanza, group: tuple[Atom, ...]) -> bool:
        return stanza.name not in self.chosen and (stanza.name, group) in self.broken

    def _provide(self, stanza: Stanza, group: tuple[Atom, ...]) -> None:
        """Satisfy a dependency: upgrade the dependent package, or choose what it depends on."""
        newer = self._newer(stanza.name)
        if newer is not None:
            self.choose(newer)
            return
        able = [self.universe[name] for name in self.offered.among(group)]
        fresh = [p for p in able if p.name not in self.installed or self._newer(p.name)]
        if fresh:
            self.choose(fresh[0])
            return
        needs = " | ".join(map(_text, group))
        why = "that of the base is newer" if able else "which the suite lacks"
        raise InvalidError(f"Debian: {stanza.name} {stanza.version} needs {needs}, {why}", _HINT)

    def _part(self, stanza: Stanza, name: str, atom: Atom) -> None:
        """Resolve a conflict between two packages by upgrading either."""
        refused = self._newer(name)
        if refused is not None and not Offered({name: refused}).answers(atom):
            self.choose(refused)
            return
        refuses = self._newer(stanza.name)
        if refuses and not any(name in self.now.answers(a) for a in _refused(refuses)):
            self.choose(refuses)
            return
        raise InvalidError(
            f"Debian: {stanza.name} {stanza.version} does not go together with {name}"
            f" {self._version(name)}: it refuses {_text(atom)}",
            _HINT,
        )

    def _newer(self, name: str) -> Package | None:
        """Return the suite's version of an installed package not chosen yet, if it is newer."""
        have, package = self.installed.get(name), self.universe.get(name)
        if have is None or package is None or name in self.chosen:
            return None
        return package if compare(package.version, have.version) > 0 else None

    def _version(self, name: str) -> str:
        return (self.chosen.get(name) or self.installed[name]).version


def _refused(stanza: Stanza) -> Iterator[Atom]:
    """Yield what a package breaks or conflicts with; the caller ignores its own provides."""
    for field in (stanza.breaks, stanza.conflicts):
        for group in relations(field):
            yield from group


def _text(atom: Atom) -> str:
    return f"{atom.name} {atom.relation} {atom.version}".rstrip()
