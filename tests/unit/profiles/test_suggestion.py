"""Which profile is meant by a name that none has."""

from __future__ import annotations

import pytest

from envbuilder.core import resources
from envbuilder.profiles import profile
from envbuilder.profiles.profile import suggestion

SHIPPED = profile.names([resources.profiles_dir()])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu", "cuda (NVIDIA), rocm (AMD), xpu (Intel) or mps (Apple)"),
        ("nvidia", "'cuda'"),
        ("cuda12", "'cuda'"),
        ("cu128", "'cuda'"),
        ("gtx1080", "'cuda-legacy'"),
        ("pascal", "'cuda-legacy'"),
        ("AMD", "'rocm'"),
        ("gfx1100", "'rocm'"),
        ("mi300x", "'rocm'"),
        ("arc", "'xpu'"),
        ("intel", "'xpu'"),
        ("m1", "'mps'"),
        ("apple_silicon", "'mps'"),
        ("epyc", "'zendnn'"),
        ("zendn", "'zendnn'"),
        ("jax", "'jax-cpu' or 'jax-cuda'"),
        ("TensorFlow", "'tensorflow-cpu' or 'tensorflow-cuda'"),
        ("x" * 10_000, ""),
        ("none of these", ""),
    ],
)
def test_the_hardwares_maker_is_enough(name: str, meant: str) -> None:
    words = suggestion(name, SHIPPED)
    assert words.startswith(f"Did you mean {meant}? " if meant else "Known profiles: cpu, ")
    assert words.endswith(f"Known profiles: {', '.join(SHIPPED)}. See `envbuilder profiles`.")


def test_no_profile_is_suggested_that_does_not_exist() -> None:
    assert suggestion("nvidia", ["cpu"]).startswith("Known")
