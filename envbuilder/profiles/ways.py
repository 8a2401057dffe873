"""With which backend a profile works on a host: what every command asks, so that all say the same.

Pure. An image counts only where a container engine answers; where none does, the way is open but
not yet walked, which is a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.profiles import fitting
from envbuilder.profiles.fitting import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Host
    from envbuilder.profiles.fitting import Level
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

_WORKS: tuple[Level, ...] = ("note", "warning")


class Way(Struct, frozen=True, kw_only=True):
    """A profile with one backend, and what speaks for and against it."""

    backend: str
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The level that decides."""
        return fitting.worst(self.findings)

    @property
    def works(self) -> bool:
        """Whether nothing known keeps it from working, once an engine answers."""
        return self.level in _WORKS

    @property
    def lacks_engine(self) -> bool:
        """Whether it takes a container engine, and none answers."""
        return any(finding.code == "engine" for finding in self.findings)

    @property
    def lacks_more(self) -> bool:
        """Whether anything but the engine is against it, or could not be confirmed."""
        return any(f.level != "note" and f.code != "engine" for f in self.findings)


def judged(profile: Profile, host: Host, lock: Lock | None = None) -> tuple[Way, ...]:
    """The backends that are taken without being asked for, the one that serves best first.

    conda is only one of them where the profile has nothing else: it needs a lock of its own.
    """
    backends: Sequence[str] = [name for name in profile.backends if name != "conda"]
    backends = backends or profile.backends
    return tuple(sorted((_way(profile, host, lock, name) for name in backends), key=_rank))


def asked_for(profile: Profile, host: Host, lock: Lock | None, backend: str) -> Way:
    """The backend that was asked for; whether its engine is there is then asked of the engine."""
    return Way(backend=backend, findings=fitting.findings(profile, host, backend, lock))


def _way(profile: Profile, host: Host, lock: Lock | None, backend: str) -> Way:
    found = fitting.findings(profile, host, backend, lock)
    engine = fitting.engine(host) if backend == "docker" else ()
    return Way(backend=backend, findings=(*found, *engine))


def _rank(way: Way) -> tuple[int, bool]:
    level = way.level
    return fitting.LEVELS.index(level), level == "warning" and way.lacks_engine


def only_image(every: tuple[Way, ...]) -> str:
    """Why the profile works here in an image only, as words after "image only: "; else empty."""
    image, native = _image_and_native(every)
    if image is None or native is None or not image.works or native.works:
        return ""
    return "; ".join(dict.fromkeys(_short(f) for f in _against(native)))


def way_out(profile: Profile, host: Host, every: tuple[Way, ...]) -> str:
    """How a profile works here that does not do so natively; empty where it does, or nothing does.

    One or two sentences, for people.
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
    image = next((way for way in every if way.backend == "docker"), None)
    return image, next((way for way in every if way.backend == "venv"), None)


def _against(way: Way) -> list[Finding]:
    """What decides against it: where it is impossible, nothing else matters."""
    return [finding for finding in way.findings if finding.level == way.level]


def _short(finding: Finding) -> str:
    return "Level Zero is missing" if finding.code == "level-zero" else finding.text
