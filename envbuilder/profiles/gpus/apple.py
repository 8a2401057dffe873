"""Apple: the GPU of an Apple silicon Mac."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.profiles.finding import Finding, blocked

if TYPE_CHECKING:
    from envbuilder.host.model import Gpu


def judge(gpu: Gpu) -> list[Finding]:
    """Check that the GPU can be used."""
    if gpu.state == "usable":
        return [Finding("note", gpu.name)]
    return [blocked("warning" if gpu.state == "unknown" else "no", gpu.detail.rstrip("."), gpu)]
