from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.payload.options import Options
from envbuilder.payload.report import BLIND_TEST, REQUIRED
from envbuilder.payload.training.dataset import Dataset, Split

FULL = Dataset("mnist", Split(b"", b"", 60_000), Split(b"", b"", 10_000), {})
SUBSET = Dataset("mnist-subset", Split(b"", b"", 3_000), Split(b"", b"", 1_000), {})


def test_full_data_is_trained_once_and_gated_at_97_5_percent() -> None:
    options = Options("cpu")
    assert (options.epochs_for(FULL), options.gate_for(FULL)) == (1, 0.975)


@pytest.mark.parametrize(
    ("epochs", "expected"), [(None, (3, 0.92)), (1, (1, 0.85)), (2, (2, 0.90)), (9, (9, 0.92))]
)
def test_a_subset_has_its_own_gate(epochs: int | None, expected: tuple[int, float]) -> None:
    options = Options("cpu", epochs=epochs)
    assert (options.epochs_for(SUBSET), options.gate_for(SUBSET)) == expected


def test_a_stated_gate_holds_for_any_data() -> None:
    options = Options("cpu", min_accuracy=0.0)
    assert (options.gate_for(FULL), options.gate_for(SUBSET)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "data", "most"),
    [
        (Options("cpu"), FULL, 0.42),
        (Options("cpu"), SUBSET, 0.904),
        (Options("cpu", epochs=1), SUBSET, 1.52),
        (Options("cpu", min_accuracy=0.0), SUBSET, 9.0),
    ],
)
def test_the_loss_that_is_allowed_goes_with_the_accuracy(
    options: Options, data: Dataset, most: float
) -> None:
    assert options.most_loss_for(data) == pytest.approx(most)


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
    assert required == ("extension ipex", *REQUIRED, "vae")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options("cuda"), True),
        (Options("cpu"), False),
        (Options("cuda", quick=True), False),
        (Options("cuda", baseline=False), False),
    ],
)
def test_when_the_cpu_is_trained_for_comparison(options: Options, expected: bool) -> None:
    assert options.trains_baseline() is expected
