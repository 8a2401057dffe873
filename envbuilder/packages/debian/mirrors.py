"""Locate Debian archives at the user's override, the machine's mirror or Debian's snapshots."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import MAIN, SECURITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File

SUITES = frozenset({"bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing"})
_DISABLED = frozenset({"no", "false", "without", "off", "disable", "0"})
"""Values that apt interprets as false (apt-pkg/contrib/strutl.cc, `StringToBool`)."""


def parse_sources(text: str) -> Iterator[tuple[str, str]]:
    """Yield the URI and suite of each source of binary packages in an apt source list.

    Both the one-line format and the deb822 format are understood.
    """
    for line in text.splitlines():
        words = re.sub(r"\[[^\]]*\]", " ", line).split()
        if len(words) >= 3 and words[0] == "deb":
            yield words[1].rstrip("/"), words[2]
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        options = fields(stanza)
        disabled = options.get("Enabled", "").strip().lower() in _DISABLED
        if "deb" in options.get("Types", "").split() and not disabled:
            for uri in options.get("URIs", "").split():
                yield from ((uri.rstrip("/"), suite) for suite in options.get("Suites", "").split())


def machine_roots(sources: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the URLs of the Debian mirrors among apt's sources, by symbolic source.

    `sources` contains the URI and suite of each of apt's sources.
    """
    mirrors: dict[str, str] = {}
    for uri, suite in sources:
        name, _, pocket = suite.partition("/")[0].partition("-")
        if uri.startswith(("http://", "https://")) and name in SUITES:
            mirrors.setdefault(SECURITY if pocket == "security" else MAIN, uri)
    return mirrors


def _machine_sources(folder: Path = Path("/etc/apt")) -> Iterator[tuple[str, str]]:
    files = [folder / "sources.list"]
    for pattern in ("*.list", "*.sources"):
        files += sorted((folder / "sources.list.d").glob(pattern))
    for path in files:
        with suppress(OSError):
            yield from parse_sources(path.read_text(encoding="utf-8", errors="replace"))


def roots(source: str, settings: Settings, when: str = "") -> tuple[str, ...]:
    """Return the archive roots to try for `debian` or `debian-security`, best first.

    If the user has set an override, it is the only root. Otherwise, the roots are the machine's own
    mirror and Debian's snapshot service as of `when`. An example of `when` is
    `2026-11-18T02:10:24Z`. An empty string means today.
    """
    override = indexes.override(source, settings)
    if override:
        return (override,)
    machine = machine_roots(_machine_sources()).get(source)
    return (*([machine] if machine else []), _snapshot(source, settings, when))


def _snapshot(source: str, settings: Settings, when: str) -> str:
    stamp = re.sub(r"[^0-9TZ]", "", when) or time.strftime("%Y%m%dT000000Z", time.gmtime())
    archive = indexes.url("debian-snapshot", settings).removesuffix("/debian")
    return f"{archive}/{source}/{stamp}"


def urls(file: File, settings: Settings) -> tuple[str, ...]:
    """Return the URLs of a locked .deb: first on a mirror, then in a snapshot that contains it."""
    return tuple(f"{root}/{file.file}" for root in roots(file.source, settings, seen(file)))


def seen(file: File) -> str:
    """Return a time at which the archive contained a locked .deb, such as `2026-11-18T02:10:24Z`.

    Return an empty string if the time is unknown.
    """
    match = re.search(r"Release of (\S+Z)$", file.by)
    return match[1] if match else ""


def snapshot(file: File, settings: Settings) -> str:
    """Return the root URL of the Debian archive that has a .deb, for use in rendered files.

    This is the user's override if it is set, and otherwise the snapshot archive. The machine's own
    mirror is never used, because a rendered file must be the same on every machine.
    """
    return indexes.override(file.source, settings) or _snapshot(file.source, settings, seen(file))


def fields(text: str) -> dict[str, str]:
    """Return the one-line fields of a stanza by name."""
    return dict(re.findall(r"^([A-Za-z0-9-]+): *(.*)$", text, re.MULTILINE))
