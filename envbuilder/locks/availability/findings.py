"""Summarize the availability of locked files and base images: counts, lines, exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core.errors import INVALID, TOOL_MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable

Status = Literal["fine", "vanished", "changed", "unknown"]


class Finding(Struct, frozen=True, kw_only=True):
    """The availability of one locked file or base image."""

    name: str
    version: str
    file: str
    sha256: str
    source: str
    profiles: tuple[str, ...]
    """The profiles whose locks name it."""
    status: Status
    detail: str = ""
    elsewhere: tuple[str, ...] = ()
    """Other locations with the same sha256, if the status is not `fine`."""

    @property
    def lost(self) -> bool:
        """Return whether no known location has the bytes any more."""
        return self.status in {"vanished", "changed"} and not self.elsewhere


class Summary(Struct, frozen=True, kw_only=True):
    """The result of `lock --check --online` (`online` in its JSON)."""

    checked: int
    fine: int
    lost: int
    unknown: int
    findings: tuple[Finding, ...]
    """Only those that are not `fine`."""

    @property
    def exit_code(self) -> int:
        """Return the exit code: `lost` outweighs `unknown`, and `unknown` is not success."""
        if self.lost:
            return INVALID
        return TOOL_MISSING if self.unknown else 0


def summary(found: Iterable[Finding]) -> Summary:
    """Count the findings, and keep those that are not fine."""
    every = tuple(found)
    return Summary(
        checked=len(every),
        fine=sum(f.status == "fine" for f in every),
        lost=sum(f.lost for f in every),
        unknown=sum(f.status == "unknown" for f in every),
        findings=tuple(f for f in every if f.status != "fine"),
    )


def table(told: Summary) -> list[str]:
    """Return the findings that are not fine, and the counts, as lines."""
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
