"""Diagnose a host: what blocks, degrades or slows it, worst first, each problem with its fix.

Pure: the host, the profiles and the observed surroundings go in, problems come out. `surroundings`
inspects the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.doctor.problem import SEVERITIES, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.doctor.surroundings import Around
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


def diagnose(
    host: Host,
    candidates: Sequence[Profile],
    locks: Mapping[str, Lock | None],
    around: Around,
    requested: Profile | None = None,
) -> tuple[Problem, ...]:
    """Return all problems of this host, or only those that affect the requested profile."""
    from envbuilder.doctor import accelerators, builds, network, slowness

    problems = [
        *accelerators.problems(host, candidates, locks, around, requested),
        *builds.problems(host, around, requested, locks.get(requested.name) if requested else None),
        *network.problems(around.silent),
        *slowness.problems(host, around),
    ]
    return tuple(sorted(problems, key=lambda p: SEVERITIES.index(p.severity)))
