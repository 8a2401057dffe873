"""Limits that leave the machine usable without ending honest work."""

from __future__ import annotations

import pytest

from envbuilder.containers.engine.container import Limits, limits

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "cpus", "expected"),
    [
        (256 * MIB, 1, Limits(memory=128 * MIB, processes=4096)),
        (1 * GIB, 1, Limits(memory=768 * MIB, processes=4096)),
        (8 * GIB, 4, Limits(memory=7680 * MIB, processes=4096)),
        (64 * GIB, 32, Limits(memory=60 * GIB, processes=4096)),
        (2048 * GIB, 256, Limits(memory=2044 * GIB, processes=32768)),
        (0, 8, Limits(memory=0, processes=4096)),
        (8 * GIB, 0, Limits(memory=7680 * MIB, processes=0)),
        (0, 0, Limits()),
    ],
)
def test_limits_leave_the_machine_a_reserve(memory: int, cpus: int, expected: Limits) -> None:
    assert limits(memory, cpus) == expected
