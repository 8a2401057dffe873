"""Which buildx instance is assigned to a profile on a platform."""

from __future__ import annotations

import pytest

from envbuilder.profiles import backends

ALL = {"cuda@linux/arm64": "both", "cuda": "profile", "linux/arm64": "platform"}


@pytest.mark.parametrize(
    ("left_out", "profile", "platform", "instance"),
    [
        ((), "cuda", "linux/arm64", "both"),
        (("cuda@linux/arm64",), "cuda", "linux/arm64", "profile"),
        (("cuda@linux/arm64", "cuda"), "cuda", "linux/arm64", "platform"),
        ((), "cuda", "linux/amd64", "profile"),
        ((), "cpu", "linux/arm64", "platform"),
        ((), "cpu", "linux/amd64", ""),
    ],
)
def test_the_narrower_assignment_goes_first(
    left_out: tuple[str, ...], profile: str, platform: str, instance: str
) -> None:
    assignments = {key: value for key, value in ALL.items() if key not in left_out}
    assert backends.assigned(assignments, profile, platform) == instance
