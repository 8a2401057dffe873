"""Decide what a Mac is, from `sysctl`'s `key: value` lines. Never tried on a real Mac by us."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.detection.text import clean, fields, integer
from envbuilder.host import Cpu, Gpu, Host

if TYPE_CHECKING:
    from envbuilder.detection.snapshot import Snapshot


def decide(snapshot: Snapshot) -> Host:
    """The host, for macOS."""
    text = snapshot.files.get("sysctl.txt")
    known = fields(text)
    notes = []
    if not known:
        why = snapshot.unreadable.get("sysctl.txt", "empty or damaged")
        notes.append(f"sysctl could not be read ({why}): nothing is known about this Mac.")
    arm = known.get("hw.optional.arm64") == "1" or (
        # A native process on Apple silicon; a translated one sees x86_64 here.
        snapshot.machine == "arm64"
    )
    translated = {"0": False, "1": True}.get(known.get("sysctl.proc_translated", ""))
    if known and translated is None:
        # An Intel Mac has neither key (Apple, "About the Rosetta translation environment").
        translated = None if arm else False
    machine = "arm64" if arm else "x86_64" if known else "unknown"
    physical, logical = integer(known.get("hw.physicalcpu")), integer(known.get("hw.logicalcpu"))
    return Host(
        os="macos",
        os_version=clean(known.get("kern.osproductversion")),
        kernel=clean(known.get("kern.osrelease")),
        machine=machine,
        platform="macos/arm64" if arm else None,
        rosetta=translated,
        cpu=Cpu(
            vendor="Apple" if arm else None,
            model_name=clean(known.get("machdep.cpu.brand_string")),
            logical=logical,
            physical=physical,
            threads=physical or logical,
        ),
        memory_bytes=integer(known.get("hw.memsize")),
        gpus=_gpus(known, arm),
        notes=tuple(notes),
    )


def _gpus(known: dict[str, str], arm: bool) -> tuple[Gpu, ...]:
    if not known or not arm:
        return ()
    name = f"{clean(known.get('machdep.cpu.brand_string')) or 'Apple silicon'} GPU"
    virtual = known.get("kern.hv_vmm_present") == "1"
    detail = "macOS runs in a virtual machine, where Metal may be missing." if virtual else ""
    return (
        Gpu(
            vendor="apple",
            name=name,
            family="Apple silicon",
            state="unknown" if virtual else "usable",
            detail=detail,
        ),
    )
