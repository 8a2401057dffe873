"""Known vulnerabilities of what locks pin.

A pin that no database could be asked about is never called free of vulnerabilities.
"""

from __future__ import annotations

import re
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from envbuilder import archives, components, debian_packages, indexes
from envbuilder.errors import BUILD_FAILED, TOOL_MISSING, ToolError
from envbuilder.osv import BATCH, Advisory, Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.lockfile import File

PYPI = "PyPI"
RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13"}
"""Debian's released suites, which OSV knows by number."""
_RANK = ("CVE-", "PYSEC-", "GHSA-")
_SUMMARY = 200
_NAMED = 6
_NOBODY = "no database lists packages of its kind, vendor or suite"


class Database(Protocol):
    """Where to ask."""

    def ask(self, pins: Sequence[Pin]) -> Mapping[Pin, tuple[str, ...]]:
        """The ids of the advisories of each pin; `ToolError` where it cannot be asked."""

    def advisory(self, name: str) -> Advisory:
        """One advisory."""


class Vulnerability(Struct, frozen=True, kw_only=True):
    """A known vulnerability of a pin."""

    package: str
    version: str
    ids: tuple[str, ...]
    """All its names, the most common first."""
    fixed_in: tuple[str, ...]
    """Versions; empty where the database names none."""
    summary: str
    profiles: tuple[str, ...]
    """Whose locks pin it."""


class Unchecked(Struct, frozen=True, kw_only=True):
    """A pin that could not be asked about, and why."""

    package: str
    version: str
    reason: str


class Audit(Struct, frozen=True, kw_only=True):
    """What is known of the pins of locks (`lock --audit --json`)."""

    schema: int = 1
    checked: int
    """Pins that the database was asked about."""
    vulnerabilities: tuple[Vulnerability, ...]
    unchecked: tuple[Unchecked, ...]

    @property
    def exit_code(self) -> int:
        """1 where something is vulnerable, 4 where that is not known of every pin, else 0."""
        if self.vulnerabilities:
            return BUILD_FAILED
        return TOOL_MISSING if self.unchecked else 0


def pin(file: File) -> Pin:
    """A file of a lock as OSV names it; without an ecosystem where OSV knows no such packages.

    No database knows local versions: torch 2.13.0+cpu is asked about as 2.13.0. Debian's
    vulnerabilities are those of source packages, and the folder in the archive is named after one.
    """
    if file.kind in {"wheel", "tool"}:
        return Pin(PYPI, indexes.canonical(file.name), file.version.partition("+")[0])
    if file.kind == "deb" and file.source in {archives.MAIN, archives.SECURITY}:
        release = RELEASES.get(components.suite(file))
        source = file.file.rpartition("/")[0].rpartition("/")[2]
        if release and source:
            # A rebuild without changes (+b1) has its source's version.
            return Pin(f"Debian:{release}", source, re.sub(r"\+b[0-9]+\Z", "", file.version))
    return Pin("", file.name, file.version)


def audit(locks: Mapping[str, Iterable[File]], database: Database) -> Audit:
    """Ask a database about every pin of locks (profile → files), each once."""
    users: dict[Pin, set[str]] = {}
    for profile, files in locks.items():
        for file in files:
            users.setdefault(pin(file), set()).add(profile)
    pins = sorted(users)
    known = [p for p in pins if p.ecosystem]
    unchecked = [_unchecked(p, _NOBODY) for p in pins if not p.ecosystem]
    found: dict[Pin, tuple[str, ...]] = {}
    for start in range(0, len(known), BATCH):
        batch = known[start : start + BATCH]
        try:
            found.update(database.ask(batch))
        except ToolError as error:
            unchecked += [_unchecked(p, error.message) for p in batch]
    names = sorted({name for ids in found.values() for name in ids})
    advisories = {name: database.advisory(name) for name in names}
    return Audit(
        checked=len(pins) - len(unchecked),
        vulnerabilities=tuple(
            vulnerability
            for p, ids in sorted(found.items())
            for vulnerability in merge(p, [advisories[i] for i in ids], sorted(users[p]))
        ),
        unchecked=tuple(unchecked),
    )


def _unchecked(pin: Pin, why: str) -> Unchecked:
    return Unchecked(package=pin.package, version=pin.version, reason=why)


def merge(
    pin: Pin, advisories: Iterable[Advisory], profiles: Sequence[str] = ()
) -> list[Vulnerability]:
    """A pin's vulnerabilities: entries that name each other are one; withdrawn ones are none."""
    groups: list[tuple[set[str], list[Advisory]]] = []
    for advisory in advisories:
        if advisory.withdrawn:
            continue
        names, members = {advisory.id, *advisory.aliases}, [advisory]
        apart = []
        for group in groups:
            if names & group[0]:
                names |= group[0]
                members = group[1] + members
            else:
                apart.append(group)
        groups = [*apart, (names, members)]
    found = [
        Vulnerability(
            package=pin.package,
            version=pin.version,
            ids=tuple(sorted(names | {u for a in members for u in a.upstream}, key=_rank)),
            fixed_in=fixed_in(pin, members),
            summary=next((s for a in members if (s := _one_line(a.summary))), ""),
            profiles=tuple(profiles),
        )
        for names, members in groups
    ]
    return sorted(found, key=lambda v: _rank(v.ids[0]))


def _rank(name: str) -> tuple[int, str]:
    kind = next((i for i, prefix in enumerate(_RANK) if name.startswith(prefix)), len(_RANK))
    return kind, name


def _one_line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:_SUMMARY]


def fixed_in(pin: Pin, advisories: Iterable[Advisory]) -> tuple[str, ...]:
    """The versions that fix a pin's package, the oldest first."""
    versions = {
        event.fixed
        for advisory in advisories
        for affected in advisory.affected
        if (affected.package.ecosystem, affected.package.name) == (pin.ecosystem, pin.package)
        for span in affected.ranges
        if span.type != "GIT"
        for event in span.events
        if event.fixed and event.fixed.isprintable()
    }
    try:
        return tuple(sorted(versions, key=_order(pin)))
    except ValueError:  # not every version of a database is one
        return tuple(sorted(versions))


def _order(pin: Pin) -> Callable[[str], Any]:
    if pin.ecosystem != PYPI:
        return cmp_to_key(debian_packages.compare)
    from packaging.version import Version

    return Version


def table(found: Audit) -> list[str]:
    """The findings as lines for people."""
    head = ("package", "version", "known as", "fixed in", "pinned by", "")
    rows = [
        (
            *(v.package, v.version, v.ids[0], ", ".join(v.fixed_in) or "nowhere yet"),
            *(", ".join(v.profiles), v.summary),
        )
        for v in found.vulnerabilities
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in ([head, *rows] if rows else [])
    ]
    for why in dict.fromkeys(u.reason for u in found.unchecked):
        names = [f"{u.package} {u.version}" for u in found.unchecked if u.reason == why]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"not checked: {', '.join(names[:_NAMED])}{more}: {why}")
    known = len(found.vulnerabilities)
    said = "1 known vulnerability" if known == 1 else f"{known} known vulnerabilities"
    lines.append(
        f"{found.checked} pins checked: {said if known else 'none has a known vulnerability'}"
        if found.checked
        else "no pin was checked, so nothing is known of vulnerabilities"
    )
    return lines
