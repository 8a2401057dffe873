from __future__ import annotations

import math

import pytest

from envbuilder.payload.numerics.compilers import WEIGHT_CACHE, Outcome, explain, summary, verdict
from envbuilder.payload.numerics.numerics import Comparison
from envbuilder.payload.report import PASSED, WARNING

RIGHT = Comparison(1e-8, {"conv1.weight": 2e-6, "fc1.weight": 1e-7})
WRONG = Comparison(1e-8, {"conv1.weight": 1.0, "fc1.weight": 1e-7})
TOLERANCE = 1e-2


@pytest.fixture(autouse=True)
def no_weight_cache_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WEIGHT_CACHE, raising=False)


def outcome(backend: str = "inductor", **changes: object) -> Outcome:
    values: dict[str, object] = {
        "gradients": {"published": RIGHT, "trained": RIGHT},
        "output_error": 5e-8,
        "updated_output_error": 5e-8,
        "inference_ms": 100.0,
        "inference_eager_ms": 200.0,
        "training_ms": 20.0,
        "training_eager_ms": 30.0,
    }
    return Outcome(backend, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (outcome(), PASSED, "gradients and outputs of inductor agree with float64"),
        (outcome(output_error=0.03), WARNING, "wrong outputs on this machine (relative error 0.03"),
        (outcome(updated_output_error=0.05), WARNING, "keeps using old weights"),
        (Outcome("x", error="install g++"), WARNING, "x could not be measured: install g++"),
    ],
)
def test_verdicts(found: Outcome, status: str, words: str) -> None:
    judged, detail = verdict(found, TOLERANCE)
    assert (judged, words in detail) == (status, True)


def test_wrong_gradients_in_one_form_are_a_warning_in_plain_words() -> None:
    status, detail = verdict(outcome(gradients={"published": WRONG, "trained": RIGHT}), TOLERANCE)
    assert status == WARNING
    assert detail == (
        "compiled training with inductor gives wrong gradients on this machine "
        "(conv1.weight: relative error 1, published form); its training numbers do not "
        "count; do not use torch.compile for training with this build"
    )


@pytest.mark.parametrize(
    "gradients",
    [{}, {"published": WRONG, "trained": RIGHT}, {"published": RIGHT, "trained": WRONG}],
)
def test_training_numbers_count_only_with_right_gradients_in_every_form(
    gradients: dict[str, Comparison],
) -> None:
    entry = summary(outcome(gradients=gradients), TOLERANCE)
    assert entry["training"]["counts"] is False
    assert entry["inference"]["counts"] is True


@pytest.mark.parametrize("error", [None, 0.5, math.inf, math.nan])
def test_inference_numbers_count_only_with_right_outputs(error: float | None) -> None:
    entry = summary(outcome(output_error=error), TOLERANCE)
    assert entry["inference"]["counts"] is False
    assert entry["training"]["counts"] is True


def test_zentorch_is_told_what_helps_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = outcome("zentorch", updated_output_error=0.05)
    assert "set ZENDNNL_MATMUL_WEIGHT_CACHE=0" in verdict(wrong, TOLERANCE)[1]
    monkeypatch.setenv(WEIGHT_CACHE, "0")
    assert WEIGHT_CACHE not in verdict(wrong, TOLERANCE)[1]
    assert WEIGHT_CACHE not in verdict(outcome(updated_output_error=0.05), TOLERANCE)[1]


def test_ratios_above_one_are_faster() -> None:
    entry = summary(outcome(), TOLERANCE)
    assert entry["inference"]["speedup_over_eager"] == 2.0
    assert entry["training"]["speedup_over_eager"] == 1.5


def test_there_is_no_ratio_without_both_numbers() -> None:
    entry = summary(outcome("zentorch", training_ms=None), TOLERANCE)
    assert entry["training"]["speedup_over_eager"] is None
    assert entry["training"]["counts"] is False


class InvalidCxxCompiler(Exception):  # noqa: N818 - torch's own name
    pass


class BackendCompilerFailed(Exception):  # noqa: N818 - torch's own name
    pass


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InvalidCxxCompiler("checked ('g++',)"), "install g++"),
        (BackendCompilerFailed("InvalidCxxCompiler: No working C++ compiler found"), "install g++"),
        (RuntimeError("x.cpp:1: fatal error: Python.h: No such file"), "Python's C headers"),
        (RuntimeError("\n first line \nsecond"), "RuntimeError: first line"),
        (RuntimeError(""), "RuntimeError: no message"),
    ],
)
def test_errors_in_plain_words(error: Exception, words: str) -> None:
    assert words in explain(error)


@pytest.mark.parametrize(
    ("comparison", "worst"),
    [
        (RIGHT, ("conv1.weight", 2e-6)),
        (Comparison(0.5, {"a": 0.1}), ("loss", 0.5)),
        (Comparison(0.0, {"a": 1.0, "b": 1.0}), ("a", 1.0)),
    ],
)
def test_the_worst_of_a_comparison(comparison: Comparison, worst: tuple[str, float]) -> None:
    assert comparison.worst() == worst
