"""Turns: how many builds run at a time, and where."""

from __future__ import annotations

import pytest

from envbuilder.build import execute
from envbuilder.build.execute import Sharing


@pytest.mark.parametrize(
    ("cores", "builds"), [(1, 2), (2, 2), (4, 2), (6, 3), (8, 4), (64, 4), (256, 4)]
)
def test_the_number_of_builds_follows_from_the_cores(cores: int, builds: int) -> None:
    assert execute.builds_at_once(cores) == builds


def test_each_instance_has_turns_of_its_own() -> None:
    shared = Sharing({"cuda": "big-box", "rocm": "big-box", "xpu": "arm-box"}, cores=4)
    assert shared.turn("cuda") is shared.turn("rocm")
    turns = {id(shared.turn(name)) for name in ("cuda", "xpu", "cpu", "zendnn")}
    assert len(turns) == 3, "the last two build on this machine"
    with shared.turn("cuda"), shared.turn("xpu"), shared.turn("cpu"), shared.turn("zendnn"):
        assert not shared.turn("rocm").acquire(blocking=False)  # type: ignore[attr-defined]
        assert not shared.turn("cpu-ipex").acquire(blocking=False)  # type: ignore[attr-defined]


def test_the_cores_are_those_of_this_process() -> None:
    assert Sharing({}).turn("cpu") is not None
    assert execute._cores() >= 1
