"""Findings for and against one profile on one host, as sentences that contain the facts.

Pure. Nothing unknown counts as working: a driver that could not be read, a GPU that no table lists
or a device node with unknown permissions is at best a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import types
from envbuilder.host import tables
from envbuilder.host.model import TRACKED_FLAGS, X86_FLAGS
from envbuilder.host.text import version
from envbuilder.profiles import accelerators
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.finding import Finding
from envbuilder.profiles.needs import needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Host
    from envbuilder.profiles.finding import Level, Needs
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


def findings(
    profile: Profile, host: Host, backend: str, lock: Lock | None = None
) -> tuple[Finding, ...]:
    """Return all findings about a profile on a host with one backend."""
    image = makes_image(backend)
    platform = docker_platform(host) if image else host.platform
    required = needs(profile, lock, platform or profile.platforms[0], wsl=host.wsl)
    return (
        *_platform(profile, host, backend),
        *(() if image else _system(required, host)),
        *_translation(host, backend),
        *_cpu_flags(profile, host),
        *accelerators.findings(profile, host, required, native=not image),
    )


def engine(host: Host) -> list[Finding]:
    """Return what keeps images from running on a host; empty if a container engine responds."""
    engines = host.containers.engines
    if any(engine.state == "usable" for engine in engines):
        return []
    text = "no container engine answers"
    if engines:
        text += f" ({engines[0].socket}: {engines[0].detail.rstrip('.')})"
    return [Finding("warning", text, "engine")]


def _platform(profile: Profile, host: Host, backend: str) -> list[Finding]:
    if backend not in profile.backends:
        return [Finding("impossible", f"it has no backend {backend}", "backend")]
    native = not makes_image(backend)
    platforms = [p for p in profile.platforms if native or p.startswith("linux/")]
    platform = host.platform if native else docker_platform(host)
    named = f"{host.os} on {host.machine}"
    level: Level = "impossible" if native or not platforms else "no"
    possible = [p for p in platforms if not native or p.startswith(host.os)]
    if possible and host.os != "other" and host.machine == "unknown":
        return [Finding("warning", "this machine's architecture could not be read", "unread")]
    if platform not in platforms:
        needed = " and ".join(platforms or profile.platforms)
        # On a Mac they are Linux's.
        subject = "this host is" if platform in {None, host.platform} else "containers here are"
        text = f"it is for {needed}; {subject} {platform or named}"
        return [Finding(level, text, "platform")]
    return []


def docker_platform(host: Host) -> types.Platform | None:
    """Return the platform of containers here: even on macOS, engines run Linux on the same CPU."""
    if host.os == "other":
        return None
    return types.container_platform(host.machine)


def _system(required: Needs, host: Host) -> list[Finding]:
    """Check what a native environment needs from the operating system."""
    if host.os == "macos":
        return _at_least("macOS", host.os_version, required.macos)
    if host.os != "linux" or not required.glibc:
        return []
    name, _, number = (host.libc or "glibc").partition(" ")
    if name != "glibc":
        text = f"the C library is {name}, and the wheels need glibc: use --backend docker"
        return [Finding("impossible", text, "libc-other")]
    number = number or tables.distribution_glibc(host.os_version) or ""
    return [f for f in _at_least("glibc", number, required.glibc) if f.level != "note"]


def _at_least(name: str, actual: str | None, minimum: str) -> list[Finding]:
    lowest, current = version(minimum), version(actual)
    if lowest is None:
        return []
    if current is None:
        return [Finding("warning", f"the version of {name} could not be read", "system-unread")]
    if current < lowest:
        text = f"{name} {actual} is older than {minimum}, which the wheels need"
        return [Finding("impossible", text, "system-old")]
    return [Finding("note", f"{name} {actual}")]


def _translation(host: Host, backend: str) -> list[Finding]:
    if host.os == "linux" and host.rosetta:
        text = "this is x86_64 Linux translated by Rosetta, which is slow"
        return [Finding("warning", text, "rosetta-linux")]
    if host.os != "macos" or makes_image(backend):
        return []
    if host.rosetta:
        text = "Python is x86_64 under Rosetta; run envbuilder with an arm64 Python"
        return [Finding("no", text, "rosetta")]
    if host.rosetta is None:
        text = "whether Python runs under Rosetta could not be read"
        return [Finding("warning", text, "unread")]
    return []


def _cpu_flags(profile: Profile, host: Host) -> list[Finding]:
    requires = profile.requires
    missing = _missing_flags(profile, host, requires.cpu_flags, "no")
    desirable = _missing_flags(profile, host, requires.cpu_flags_wanted, "warning")
    # A desirable flag that could not be read is no reason to doubt the rest.
    return missing or [f for f in desirable if f.code == "cpu-flags"]


def _missing_flags(
    profile: Profile, host: Host, named: Sequence[str], level: Level
) -> list[Finding]:
    # x86 flags do not apply to other processors, which a profile may also support.
    needed = [flag for flag in named if flag not in X86_FLAGS or host.machine == "x86_64"]
    if not needed:
        return []
    if host.cpu.flags is None:
        return [Finding("warning", "the CPU's flags could not be read", "unread")]
    result = []
    has = tables.with_implied_flags(host.cpu.flags)
    # Every 64-bit x86 has SSE2: a host without it was recorded before such flags were tracked.
    recorded = TRACKED_FLAGS if "sse2" in has else TRACKED_FLAGS - {"sse2", "sse4_1"}
    has &= TRACKED_FLAGS
    unrecorded = [flag for flag in needed if flag not in recorded and flag not in has]
    if unrecorded:
        text = f"whether the CPU has {', '.join(unrecorded)} is not recorded"
        result.append(Finding("warning", text, "unread"))
    missing = [flag for flag in needed if flag in recorded and flag not in has]
    name = host.cpu.generation or host.cpu.model_name or "the CPU"
    if missing:
        first = missing[0].replace("sse4_", "SSE4.")
        lacks = "no AVX-512" if "avx512f" in missing else f"no {first}"
        then = profile.requires.without_cpu_flags
        text = f"{name} has {lacks} ({', '.join(missing)} missing){then and f': {then}'}"
        result.append(Finding(level, text, "cpu-flags"))
    elif not unrecorded and profile.expects.extension:
        result.append(Finding("note", f"{name} has {needed[-1]}"))
    return result
