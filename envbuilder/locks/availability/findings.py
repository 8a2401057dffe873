"""What is left upstream of the pins of some locks, as counts, lines and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core.errors import INVALID, TOOL_MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable

Status = Literal["fine", "vanished", "changed", "unknown"]


class Finding(Struct, frozen=True, kw_only=True):
    """What is left of a pin."""

    name: str
    version: str
    file: str
    sha256: str
    source: str
    profiles: tuple[str, ...]
    """Those whose locks name it."""
    status: Status
    detail: str = ""
    elsewhere: tuple[str, ...] = ()
    """Where the same sha256 is, for what is not fine."""

    @property
    def lost(self) -> bool:
        """Whether nobody is known to have the bytes any more."""
        return self.status in {"vanished", "changed"} and not self.elsewhere


class Summary(Struct, frozen=True, kw_only=True):
    """What `lock --check --online` says (`online` in its JSON)."""

    checked: int
    fine: int
    lost: int
    unknown: int
    findings: tuple[Finding, ...]
    """Those that are not fine."""

    @property
    def exit_code(self) -> int:
        """Lost outweighs unknown, and unknown is not fine."""
        if self.lost:
            return INVALID
        return TOOL_MISSING if self.unknown else 0


def summary(found: Iterable[Finding]) -> Summary:
    """Counts of all findings, and those that somebody should look at."""
    every = tuple(found)
    return Summary(
        checked=len(every),
        fine=sum(f.status == "fine" for f in every),
        lost=sum(f.lost for f in every),
        unknown=sum(f.status == "unknown" for f in every),
        findings=tuple(f for f in every if f.status != "fine"),
    )


def table(told: Summary) -> list[str]:
    """What is not fine, and counts, as lines."""
    lines = []
    for found in told.findings:
        word = "not checked" if found.status == "unknown" else found.status
        lines.append(f"{word}: {found.file} ({', '.join(found.profiles)}): {found.detail}")
        if found.elsewhere:
            lines.append(f"  the same bytes are in {', '.join(found.elsewhere)}")
        elif found.lost:
            lines.append("  the same bytes were found nowhere")
    gone = len(told.findings) - told.unknown
    lines.append(
        f"files: {told.checked}; where they were: {told.fine}; gone or changed: {gone},"
        f" found nowhere: {told.lost}; not checked: {told.unknown}"
    )
    return lines
