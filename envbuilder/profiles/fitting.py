"""Findings for and against one profile on one host, as sentences that contain the facts.

Pure. Nothing unknown counts as working: a driver that could not be read, a GPU that no table lists
or a device node with unknown permissions is at best a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import types as words
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
    wanted = needs(profile, lock, platform or profile.platforms[0])
    return (
        *_platform(profile, host, backend),
        *(() if image else _system(wanted, host)),
        *_translation(host, backend),
        *_cpu_flags(profile, host),
        *accelerators.findings(profile, host, wanted, native=not image),
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
    wanted = [p for p in profile.platforms if native or p.startswith("linux/")]
    here = host.platform if native else docker_platform(host)
    named = f"{host.os} on {host.machine}"
    level: Level = "impossible" if native or not wanted else "no"
    possible = [p for p in wanted if not native or p.startswith(host.os)]
    if possible and host.os != "other" and host.machine == "unknown":
        return [Finding("warning", "this machine's architecture could not be read", "unread")]
    if here not in wanted:
        text = f"it is for {' and '.join(wanted)}; this host is {here or named}"
        return [Finding(level, text, "platform")]
    return []


def docker_platform(host: Host) -> words.Platform | None:
    """Return the platform of containers here: even on macOS, engines run Linux on the same CPU."""
    if host.os == "other":
        return None
    return words.container_platform(host.machine)


def _system(wanted: Needs, host: Host) -> list[Finding]:
    """Check what a native environment needs from the operating system."""
    if host.os == "macos":
        return _at_least("macOS", host.os_version, wanted.macos)
    if host.os != "linux" or not wanted.glibc:
        return []
    name, _, number = (host.libc or "glibc").partition(" ")
    if name != "glibc":
        text = f"the C library is {name}, and the wheels need glibc: use --backend docker"
        return [Finding("impossible", text, "libc-other")]
    number = number or tables.distribution_glibc(host.os_version) or ""
    return [f for f in _at_least("glibc", number, wanted.glibc) if f.level != "note"]


def _at_least(name: str, found: str | None, wanted: str) -> list[Finding]:
    needed, here = version(wanted), version(found)
    if needed is None:
        return []
    if here is None:
        return [Finding("warning", f"the version of {name} could not be read", "system-unread")]
    if here < needed:
        text = f"{name} {found} is older than {wanted}, which the wheels need"
        return [Finding("impossible", text, "system-old")]
    return [Finding("note", f"{name} {found}")]


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
    found = _missing_flags(profile, host, requires.cpu_flags, "no")
    wanted = _missing_flags(profile, host, requires.cpu_flags_wanted, "warning")
    # A wanted flag that could not be read is no reason to doubt the rest.
    return found or [f for f in wanted if f.code == "cpu-flags"]


def _missing_flags(
    profile: Profile, host: Host, named: Sequence[str], level: Level
) -> list[Finding]:
    # x86 flags do not apply to other processors, which a profile may also support.
    needed = [flag for flag in named if flag not in X86_FLAGS or host.machine == "x86_64"]
    if not needed:
        return []
    if host.cpu.flags is None:
        return [Finding("warning", "the CPU's flags could not be read", "unread")]
    found = []
    has = tables.with_implied_flags(host.cpu.flags)
    # Every 64-bit x86 has SSE2: a host without it was recorded before such flags were tracked.
    kept = TRACKED_FLAGS if "sse2" in has else TRACKED_FLAGS - {"sse2", "sse4_1"}
    has &= TRACKED_FLAGS
    untold = [flag for flag in needed if flag not in kept and flag not in has]
    if untold:
        text = f"whether the CPU has {', '.join(untold)} is not recorded"
        found.append(Finding("warning", text, "unread"))
    missing = [flag for flag in needed if flag in kept and flag not in has]
    name = host.cpu.generation or host.cpu.model_name or "the CPU"
    if missing:
        first = missing[0].replace("sse4_", "SSE4.")
        lacks = "no AVX-512" if "avx512f" in missing else f"no {first}"
        then = profile.requires.without_cpu_flags
        text = f"{name} has {lacks} ({', '.join(missing)} missing){then and f': {then}'}"
        found.append(Finding(level, text, "cpu-flags"))
    elif not untold and profile.expects.extension:
        found.append(Finding("note", f"{name} has {needed[-1]}"))
    return found
