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


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("cuda", None),
        ("linux/arm64", None),
        ("cuda@linux/amd64", None),
        ("cudda", "cudda"),
        ("linux/riscv64", "linux/riscv64"),
        ("macos/arm64", "macos/arm64"),
        ("cudda@linux/amd64", "cudda"),
        ("cuda@linux", "linux"),
        ("cuda@", "cuda@"),
        ("@linux/amd64", "@linux/amd64"),
        ("", ""),
    ],
)
def test_a_key_names_a_profile_a_platform_or_both(key: str, wrong: str | None) -> None:
    problem = backends.problem(key, ("cpu", "cuda"))
    assert (problem[0] if problem else None) == wrong


def test_any_valid_name_may_be_a_profile_of_another_project() -> None:
    assert backends.problem("mine@linux/amd64", None) is None
    assert backends.problem("Mine", None) == ("Mine", ())
