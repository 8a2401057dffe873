"""Debian archives: the mirrors that this machine uses, and the URLs of a locked .deb."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import MAIN, SECURITY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File

SUITES = frozenset({"bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing"})


class Entry(Struct, frozen=True):
    """One apt source: its URI and its suites."""

    uri: str
    suites: tuple[str, ...]


_DISABLED = frozenset({"no", "false", "without", "off", "disable", "0"})
"""What apt reads as false (apt-pkg/contrib/strutl.cc, `StringToBool`)."""


def parse_sources(text: str) -> tuple[Entry, ...]:
    """Return the binary package sources of an apt list, in either of apt's two formats."""
    entries = []
    for line in text.splitlines():
        part = re.sub(r"\[[^\]]*\]", " ", line).split()
        if len(part) >= 3 and part[0] == "deb":
            entries.append(Entry(part[1].rstrip("/"), (part[2],)))
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        options = fields(stanza)
        disabled = options.get("Enabled", "").strip().lower() in _DISABLED
        if "deb" in options.get("Types", "").split() and not disabled:
            suites = tuple(options.get("Suites", "").split())
            entries += [Entry(u.rstrip("/"), suites) for u in options.get("URIs", "").split()]
    return tuple(entries)


def machine_roots(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the Debian mirrors among apt's sources, by symbolic source."""
    mirrors: dict[str, str] = {}
    for entry in entries:
        if not entry.uri.startswith(("http://", "https://")):
            continue
        for suite in entry.suites:
            name, _, part = suite.partition("/")[0].partition("-")
            if name in SUITES:
                mirrors.setdefault(SECURITY if part == "security" else MAIN, entry.uri)
    return mirrors


def _machine_entries(folder: Path = Path("/etc/apt")) -> tuple[Entry, ...]:
    files = [folder / "sources.list"]
    for pattern in ("*.list", "*.sources"):
        files += sorted((folder / "sources.list.d").glob(pattern))
    entries: list[Entry] = []
    for path in files:
        try:
            entries += parse_sources(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return tuple(entries)


def roots(source: str, settings: Settings, when: str = "") -> tuple[str, ...]:
    """Return the archive roots to try for `debian` or `debian-security`, best first.

    Only the user's override if there is one; otherwise the machine's own mirror, then Debian's
    snapshot service at `when` (`2026-11-18T02:10:24Z`; empty for today).
    """
    override = indexes.override(source, settings)
    if override:
        return (override,)
    machine = machine_roots(_machine_entries()).get(source)
    stamp = re.sub(r"[^0-9TZ]", "", when) or _today()
    archive = indexes.url("debian-snapshot", settings).removesuffix("/debian")
    return (*([machine] if machine else []), f"{archive}/{source}/{stamp}")


def _today() -> str:
    import time

    return time.strftime("%Y%m%dT000000Z", time.gmtime())


def urls(file: File, settings: Settings) -> tuple[str, ...]:
    """Return the URLs of a locked .deb, best first: the mirror, then the snapshot that had it."""
    return tuple(f"{root}/{file.file}" for root in roots(file.source, settings, seen(file)))


def seen(file: File) -> str:
    """Return when the archive had a locked .deb (`2026-11-18T02:10:24Z`); empty if unknown."""
    match = re.search(r"Release of (\S+Z)$", file.by)
    return match[1] if match else ""


def snapshot(file: File, settings: Settings) -> str:
    """Return the archive root of a .deb for rendered files: the override, or else the snapshot.

    Never the machine's own mirror: a rendered file must be the same on every machine.
    """
    override = indexes.override(file.source, settings)
    return override or roots(file.source, settings, seen(file))[-1]


def fields(text: str) -> dict[str, str]:
    """Return the one-line fields of a stanza."""
    return dict(re.findall(r"^([A-Za-z0-9-]+): *(.*)$", text, re.MULTILINE))
