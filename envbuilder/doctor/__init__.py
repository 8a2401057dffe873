"""What stands in the way on this host, and what costs speed, each with its fix; worst first.

Pure: the host, the profiles and what was seen around them go in, problems come out. `around` looks
at the machine, `repair` changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.doctor.around import Around
    from envbuilder.host import Host
    from envbuilder.lockfile import Lock
    from envbuilder.profiles import Profile

Severity = Literal["blocks", "limits", "slows"]
SEVERITIES: tuple[Severity, ...] = ("blocks", "limits", "slows")
"""It keeps an accelerator or every build from working; something works less; it costs speed."""


class Repair(Struct, frozen=True, kw_only=True):
    """Commands that mend a problem, are safe, and can be taken back; all are root's business."""

    commands: tuple[tuple[str, ...], ...]
    undo: tuple[tuple[str, ...], ...]
    """The commands that take it back."""
    after: str = ""
    """What else it takes until it counts."""


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    severity: Severity
    code: str
    """Stable name, for scripts."""
    text: str
    fix: str
    repair: Repair | None = None


def diagnose(
    host: Host,
    candidates: Sequence[Profile],
    locks: Mapping[str, Lock | None],
    around: Around,
    asked: Profile | None = None,
) -> tuple[Problem, ...]:
    """All problems of this host, or those that matter for the profile that was asked for."""
    from envbuilder.doctor import accelerators, slowness, tools

    found = [
        *accelerators.problems(host, candidates, locks, around, asked),
        *tools.problems(host, around, asked, locks.get(asked.name) if asked else None),
        *slowness.problems(host, around),
    ]
    return tuple(sorted(found, key=lambda p: SEVERITIES.index(p.severity)))
