"""Check that a host has what a conda lock assumes: its virtual packages. Pure.

What could not be read is reported as unknown, never as absent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.host import tables
from envbuilder.host.text import version
from envbuilder.profiles.needs import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envbuilder.host.model import Host
    from envbuilder.packages.conda.lock import Target

    Judge = Callable[[Host, str], Finding]

_LEVELS = {
    "x86_64_v3": frozenset({"avx", "avx2", "fma", "f16c"}),
    "x86_64_v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
"""Levels of x86-64 → those of their flags that hosts report."""
_ANY = frozenset({"x86_64", "aarch64", "arm64", "m1"})
"""Processors that every machine of a platform has."""
_FITS = Finding("note", "")


def findings(target: Target, host: Host) -> Iterator[Finding]:
    """Yield what rules out a target on a host: `impossible` and `no`, or a warning if unknown."""
    for name, required in sorted(target.virtual_packages.items()):
        judge = _JUDGES.get(name)
        if judge is None:
            text = f"whether this machine has {name} {required} is not known"
            yield Finding("warning", text, "unread")
            continue
        needed, systems = _SYSTEMS.get(name, ("", {host.os}))
        if host.os not in systems:
            its = f"this host is {host.os} on {host.machine}"
            text = f"the conda packages are for {needed}, and {its}"
            yield Finding("impossible", text, "platform")
            continue
        finding = judge(host, required)
        if finding.level != "note":
            yield finding


def _at_least(name: str, actual: str | None, required: str) -> Finding:
    least, current = version(required), version(actual)
    if current is None or least is None:
        text = f"whether {name} is {required} or newer could not be read"
        return Finding("warning", text, "system-unread")
    if current < least:
        text = f"{name} {actual} is older than {required}, which its conda packages are locked for"
        return Finding("impossible", text, "system-old")
    return _FITS


def _glibc(host: Host, required: str) -> Finding:
    name, _, number = (host.libc or "glibc").partition(" ")
    if name != "glibc":
        text = f"the C library is {name}, and the conda packages need glibc"
        return Finding("impossible", text, "libc-other")
    return _at_least("glibc", number, required)


def _linux(host: Host, required: str) -> Finding:
    numbers = re.match(r"[0-9]+(\.[0-9]+)*", host.kernel or "", re.ASCII)
    return _at_least("the Linux kernel", numbers[0] if numbers else None, required)


def _archspec(host: Host, wanted: str) -> Finding:
    named = wanted.partition("=")[2]
    flags = _LEVELS.get(named)
    if named in _ANY or not named:
        return _FITS
    if flags is None or host.cpu.flags is None:
        text = f"whether the CPU can do what {named} can is not known"
        return Finding("warning", text, "unread")
    missing = sorted(flags - set(host.cpu.flags))
    if missing:
        text = f"the CPU is not {named}, which the conda packages are locked for: no {missing[0]}"
        return Finding("no", text, "cpu-flags")
    return _FITS


def _cuda(host: Host, required: str) -> Finding:
    gpus = [gpu for gpu in host.gpus if gpu.vendor in {"nvidia", "unknown"}]
    if not gpus:
        text = f"no NVIDIA GPU was found, and the conda packages are locked for CUDA {required}"
        return Finding("no", text, "no-gpu")
    major = required.partition(".")[0]
    oldest = tables.cuda_driver(int(major), wsl=host.wsl) if major.isdecimal() else None
    drivers = [v for v in (version(gpu.driver_version) for gpu in gpus) if v is not None]
    needed = version(oldest)
    if needed is None or not drivers:
        text = f"whether NVIDIA's driver can do CUDA {required} could not be read"
        return Finding("warning", text, "driver-unread")
    if max(drivers) < needed:
        newest = ".".join(map(str, max(drivers)))
        text = f"NVIDIA driver {newest} is older than {oldest}, which CUDA {required} needs"
        return Finding("no", text, "driver-old")
    return _FITS


_JUDGES: dict[str, Judge] = {
    "__archspec": _archspec,
    "__cuda": _cuda,
    "__glibc": _glibc,
    "__linux": _linux,
    "__osx": lambda host, required: _at_least("macOS", host.os_version, required),
    "__unix": lambda *_: _FITS,
}
_SYSTEMS = {
    "__glibc": ("glibc", {"linux"}),
    "__linux": ("Linux", {"linux"}),
    "__osx": ("macOS", {"macos"}),
    "__unix": ("a Unix", {"linux", "macos"}),
}
"""Virtual packages → the operating systems that have them."""
