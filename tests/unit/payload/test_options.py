from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.payload import options as gates
from envbuilder.payload.options import Options
from envbuilder.payload.report import BLIND_TEST, REQUIRED
from envbuilder.payload.training.dataset import Dataset
from tests.support.datasets import sized

FULL = sized("mnist", 60_000, 10_000)
PART = FULL.first(20_032)
SUBSET = sized("mnist-subset", 3_000, 1_000)


def test_full_data_is_trained_once_and_has_gates_for_it() -> None:
    options = Options("cpu")
    assert (options.epochs_for(FULL), options.gates_for(FULL)) == (1, gates.FULL)
    assert options.gates_for(FULL).accuracy >= 0.97


@pytest.mark.parametrize(("epochs", "trained"), [(None, 3), (1, 1), (2, 2), (9, 9)])
def test_a_subset_has_gates_of_its_own(epochs: int | None, trained: int) -> None:
    options = Options("cpu", epochs=epochs)
    expected = gates.QUICK[min(trained, 3) - 1]
    assert (options.epochs_for(SUBSET), options.gates_for(SUBSET)) == (trained, expected)


@pytest.mark.parametrize(
    ("stated", "data", "accuracy", "loss"),
    [
        (0.975, FULL, 0.975, 0.42),
        (0.96, PART, 0.96, 0.552),
        (None, PART, 0.975, 0.42),
        (0.0, SUBSET, 0.0, 9.0),
    ],
)
def test_a_stated_accuracy_holds_for_any_data_and_bounds_the_losses(
    stated: float | None, data: Dataset, accuracy: float, loss: float
) -> None:
    options = Options("cpu", min_accuracy=stated)
    assert options.gates_for(data) == (accuracy, pytest.approx(loss), pytest.approx(loss))


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
