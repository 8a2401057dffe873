"""Each case of the arithmetic check sees a fault, and sees none where there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envbuilder import payload
from envbuilder.payload.numerics.arithmetic import CASES
from tests.conftest import ran, succeeded

Seen = dict[str, list[str]]


@pytest.fixture(scope="module")
def seen(torch_python: Path) -> Seen:
    """Fault → the dtypes and cases that failed."""
    package = Path(payload.__file__).parents[1]
    done = succeeded(
        ran(
            [str(torch_python), str(Path(__file__).with_name("payload_faults.py"))],
            env={**os.environ, "PYTHONPATH": str(package)},
        )
    )
    found: Seen = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_right_arithmetic_passes_in_every_dtype(seen: Seen) -> None:
    assert seen["none"] == []


EVERY = ("float32", "bfloat16", "float16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "case", "dtypes"),
    [
        ("weight strides ignored", "conv2d with a strided weight", EVERY),
        ("channel slice", "conv2d of a channel slice", EVERY),
        ("chunk in conv2d", "conv2d of a chunk", EVERY),
        ("chunk in matmul", "matmul of chunks", EVERY),
        ("chunk in tanh", "elementwise on chunks", EVERY),
        ("groups", "conv2d in groups", EVERY),
        ("many channels", "conv2d of 65,537 channels", ("float32",)),
        ("in place", "in place into a strided view", EVERY),
        ("flipped conv3d", "conv3d", EVERY),
        ("half linear", "linear", ("float16",)),
        ("nothing dropped", "dropout", EVERY),
        ("one random NaN", "random numbers", EVERY),
    ],
)
def test_a_fault_is_seen_by_the_case_made_for_it(
    seen: Seen, fault: str, case: str, dtypes: tuple[str, ...]
) -> None:
    assert {dtype for dtype in EVERY if f"{dtype} {case}" in seen[fault]} == set(dtypes)


@pytest.mark.slow
def test_a_fault_of_one_dtype_is_seen_in_that_one_only(seen: Seen) -> None:
    assert {name.split()[0] for name in seen["bfloat16 matmul"]} == {"bfloat16"}
    assert {name.split()[0] for name in seen["float16 conv2d"]} == {"float16"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no weight gradient", "one NaN"])
def test_a_fault_of_all_convolutions_is_seen_by_all_their_cases(seen: Seen, fault: str) -> None:
    convolutions = [name for name in CASES if name.startswith("conv2d")]
    assert set(seen[fault]) == {f"{dtype} {name}" for dtype in EVERY for name in convolutions}


@pytest.mark.slow
def test_every_case_can_fail(seen: Seen) -> None:
    failed = {name.partition(" ")[2] for names in seen.values() for name in names}
    assert failed == set(CASES)
