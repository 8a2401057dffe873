"""Decide with which backend a profile works on a host; used by all commands, so that they agree.

Pure. An image counts only if a container engine responds. If none does, the image is possible but
unconfirmed, which is a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.profiles import backends, fitting
from envbuilder.profiles.finding import LEVELS, Finding, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Host
    from envbuilder.profiles.finding import Level
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

_WORKS: tuple[Level, ...] = ("note", "warning")


class Way(Struct, frozen=True, kw_only=True):
    """A profile with one backend, and the findings for and against it."""

    backend: str
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The most severe level, which decides."""
        return worst(self.findings)

    @property
    def works(self) -> bool:
        """Return whether no known obstacle remains once an engine responds."""
        return self.level in _WORKS

    @property
    def lacks_engine(self) -> bool:
        """Return whether it needs a container engine and none responds."""
        return any(finding.code == "engine" for finding in self.findings)

    @property
    def lacks_more(self) -> bool:
        """Return whether anything except the engine is an obstacle or could not be confirmed."""
        return any(f.level != "note" and f.code != "engine" for f in self.findings)


def judged(profile: Profile, host: Host, lock: Lock | None = None) -> tuple[Way, ...]:
    """Return the backends that are used without being requested, the one that works best first.

    conda is among them only if the profile has no other: it needs a lock of its own.
    """
    names = backends.automatic(profile.backends)
    return tuple(sorted((_way(profile, host, lock, name) for name in names), key=_rank))


def requested(profile: Profile, host: Host, lock: Lock | None, backend: str) -> Way:
    """Return the requested backend without a check for an engine, which is queried later."""
    return Way(backend=backend, findings=fitting.findings(profile, host, backend, lock))


def _way(profile: Profile, host: Host, lock: Lock | None, backend: str) -> Way:
    findings = fitting.findings(profile, host, backend, lock)
    engine = fitting.engine(host) if backends.makes_image(backend) else ()
    return Way(backend=backend, findings=(*findings, *engine))


def _rank(way: Way) -> tuple[int, bool]:
    level = way.level
    return LEVELS.index(level), level == "warning" and way.lacks_engine


def only_image(every: tuple[Way, ...]) -> str:
    """Return why the profile works here in an image only, to follow "image only: "; else empty."""
    image, native = _image_and_native(every)
    if image is None or native is None or not image.works or native.works:
        return ""
    return "; ".join(dict.fromkeys(_short(f) for f in _against(native)))


def way_out(profile: Profile, host: Host, every: tuple[Way, ...]) -> str:
    """Return how a profile that does not work natively works here, in one or two sentences.

    Empty if it works natively, or not at all.
    """
    image, native = _image_and_native(every)
    if image is None or native is None or not image.works or native.works:
        return ""
    verb = "may work" if image.lacks_more else "works"
    text = f"{profile.name} {verb} here in a Docker image"
    if image.lacks_engine:
        text += " once a container engine runs"
    against = _against(native)
    if {finding.code for finding in against} == {"level-zero"}:
        from envbuilder.host import drivers

        text += f", or natively {drivers.level_zero_natively(host)}."
    else:
        text += f"; natively not: {'; '.join(dict.fromkeys(f.text for f in against))}."
    return f"{text} See: envbuilder doctor"


def _image_and_native(every: tuple[Way, ...]) -> tuple[Way | None, Way | None]:
    image = next((way for way in every if backends.makes_image(way.backend)), None)
    return image, native(every)


def native(every: Sequence[Way]) -> Way | None:
    """Return the best way that makes a native environment, if there is one."""
    return next((way for way in every if not backends.makes_image(way.backend)), None)


def _against(way: Way) -> list[Finding]:
    """Return the findings that decide against it: if it is impossible, nothing else matters."""
    return [finding for finding in way.findings if finding.level == way.level]


def _short(finding: Finding) -> str:
    return "Level Zero is missing" if finding.code == "level-zero" else finding.text
