from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.payload.options import Options
from envbuilder.payload.report import BLIND_TEST, REQUIRED
from envbuilder.payload.training.dataset import Dataset
from tests.support.datasets import sized

FULL = sized("mnist", 60_000, 10_000)
SUBSET = sized("mnist-subset", 3_000, 1_000)


@pytest.mark.parametrize(
    ("data", "epochs", "trained"),
    [(FULL, None, 1), (FULL, 9, 9), (SUBSET, None, 3), (SUBSET, 1, 1), (SUBSET, 9, 9)],
)
def test_few_images_are_trained_for_more_epochs(
    data: Dataset, epochs: int | None, trained: int
) -> None:
    assert Options("cpu", epochs=epochs).epochs_for(data) == trained


def test_a_blind_test_is_required_where_there_are_questions() -> None:
    assert BLIND_TEST not in Options("cpu").required()
    assert BLIND_TEST in Options("cpu", questions=Path("questions")).required()


def test_quick_compiles_nothing() -> None:
    assert Options("cpu", compile_backends=("inductor",)).backends() == ("inductor",)
    assert Options("cpu", quick=True, compile_backends=("inductor",)).backends() == ()


@pytest.mark.parametrize(
    ("quick", "prefix", "required"),
    [
        (False, "zentorch::", True),
        (True, "zentorch::", False),
        (False, "torch_ipex::", True),
        (True, "torch_ipex::", True),
    ],
)
def test_kernels_are_required_where_they_can_be_seen(
    quick: bool, prefix: str, required: bool
) -> None:
    options = Options("cpu", quick=quick, require_kernels=(prefix,))
    assert ("kernels" in options.required()) is required


def test_an_extension_that_is_asked_for_is_required() -> None:
    required = Options("cpu", extensions=("ipex",)).required()
    assert required == ("extension ipex", *REQUIRED, "arithmetic")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options("cuda"), True),
        (Options("cpu"), False),
        (Options("cuda", quick=True), False),
    ],
)
def test_when_the_cpu_is_trained_for_comparison(options: Options, expected: bool) -> None:
    assert options.trains_baseline() is expected
