"""A passing report against the request, its own sums and the time its process lived."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.payload.training.dataset import SUBSET_SHA256, Dataset
from envbuilder.profiles.profile import Expected
from envbuilder.verify.report import consistency, model
from envbuilder.verify.report.consistency import FULL as MEASURED, QUICK, Gates, gates_for
from tests.support.datasets import sized
from tests.support.pretended_payload import quick_report
from tests.support.reports import epoch, measured

SUBSET = sized("MNIST subset (shipped)", 3000, 1000, SUBSET_SHA256)
FULL = sized("MNIST", 60000, 10000)
PART = FULL.first(20_032)
EXPECTS = Expected(device="cpu", version="2.13.0+cpu")
LIVED = 60.0
ONE = QUICK[0]
"""The gates after one epoch of the subset."""


def contradictions_of(
    data: dict[str, Any], seconds: float = LIVED, epochs: int = 1, expects: Expected = EXPECTS
) -> list[str]:
    """The contradictions of a report after a quick request."""
    asked = consistency.request_for(expects, SUBSET, epochs=epochs, quick=True)
    return consistency.contradictions(asked, model.check(data), seconds)


def contradictions(seconds: float = LIVED, **changes: Any) -> list[str]:
    return contradictions_of(quick_report(**changes), seconds)


def test_fewer_images_than_mnist_has_are_one_epoch_with_the_profiles_own_gate() -> None:
    few = Expected(device="cpu", version="1", images=20_032, accuracy=0.96)
    asked = consistency.request_for(few, FULL, epochs=None, quick=False)
    assert (asked.train, asked.test, asked.subset) == (20_032, 10_000, True)
    assert (asked.epochs, asked.gates.accuracy) == (1, 0.96)
    quick = consistency.request_for(few, FULL, epochs=None, quick=True)
    assert (quick.train, quick.epochs, quick.gates) == (3_000, 3, QUICK[2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quick": False}, "quick: True was requested, but False is reported"),
        ({"dataset__train": 60000}, "training images: 3000 was requested, but 60000"),
        ({"dataset__test": 10000}, "test images: 1000 was requested"),
        ({"dataset__sha256": {}}, "the data's sha256: "),
        ({"precision__dtype": "bfloat16"}, "precision: float32 was requested, but bfloat16"),
        ({"precision": None}, "precision: float32 was requested, but None"),
        ({"training__batch": 640}, "batch: 64 was requested, but 640"),
        ({"framework__version": "2.12.0+cpu"}, "torch: 2.13.0+cpu was requested, but 2.12.0+cpu"),
        ({"framework__version": "2.13.0"}, "torch: 2.13.0+cpu was requested, but 2.13.0 "),
        ({"framework__name": "jax"}, "framework: torch was requested, but jax is reported"),
        ({"framework": {}}, "torch: 2.13.0+cpu was requested, but None"),
        (
            {"device": {"requested": "cuda", "used": "cuda"}},
            "device: cpu was requested, but cuda is reported",
        ),
        ({"training__epochs": [epoch(2.0)] * 2}, "epochs: 1 was requested, but 2 is reported"),
        ({"training__epochs": [epoch(20.0) | {"data_seconds": 9.0}]}, "but its parts took 9.000 s"),
        ({"training__epochs": [epoch(20.0, 0.98415)]}, "is not a fraction of 1000 images"),
        ({"training__epochs": [epoch(20.0) | {"loss": None}]}, "an epoch has no loss"),
        (
            {"training__losses": [[n, 2.3] for n in range(1, 48)]},
            "mean loss is 0.200, but that of the loss curve is 2.300",
        ),
        (
            {"training__epochs": [epoch(80.0)]},
            "training took 80.00 s, but its process only ran for 60",
        ),
        ({"training__cold_start_seconds": 61.0}, "starting took 61.00 s, but its process"),
        ({"training__epochs": [epoch(50.0)]}, "training and the checks together took 6"),
        ({"speedup": 3.0}, "the speed-up 3.00 does not match its epochs"),
        (
            {"speedup": 3.0, "baseline": {"seconds": 21.0}},
            "the speed-up 3.00 does not match its epochs",
        ),
        (
            {"training__epochs": [epoch(20.0) | {"data_seconds": -5.0, "compute_seconds": 25.0}]},
            "but its parts took -5.000 s and 25.000 s",
        ),
        ({"baseline": {"seconds": 90}}, "training took 110.00 s, but its process only ran for 60"),
        ({"baseline": {}}, "the baseline has no time"),
        ({"baseline": {"seconds": 0.0}}, "the baseline has no time"),
        ({"training__epochs": [epoch(20.0, 0.984002)]}, "0.984002 is not a fraction of 1000"),
        ({"training__epochs": [epoch(20.0) | {"data_seconds": 1.0001}]}, "its parts took 1.000 s"),
        ({"dataset__subset": False}, "subset: True was requested, but False is reported"),
        ({"dataset__name": "MNIST"}, "data: MNIST subset (shipped) was requested, but MNIST"),
        (
            {
                "scaling": {"devices": [{"index": 0, "samples_per_second": 1.0}], "ranks": 1}
                | {"status": "passed"}
            },
            "several devices: not requested",
        ),
    ],
)
def test_a_report_that_cannot_be_true(changes: dict[str, Any], words: str) -> None:
    assert any(words in sentence for sentence in contradictions(**changes)), contradictions(
        **changes
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__epochs": [epoch(20.0, 0.85)]},
        {"training__epochs": [epoch(20.0) | {"loss": ONE.loss}]},
        # Sums of rounded numbers.
        {"training__epochs": [epoch(20.0, 0.9840005)]},
        {"training__epochs": [epoch(20.0) | {"data_seconds": 1.00001}]},
        {"training__epochs": [epoch(20.0) | {"loss": 0.0}]},
        {"training__cold_start_seconds": 0.0},
        {"baseline": {"seconds": 0.5}},
        {"baseline": {"seconds": 10.0}, "speedup": 0.5},
    ],
)
def test_a_report_that_is_odd_and_may_be_true(changes: dict[str, Any]) -> None:
    assert contradictions(**changes) == []


@pytest.mark.parametrize(
    ("points", "loss", "plausible"),
    [
        (20, 2.3, False),
        (19, 2.3, True),
        # With two epochs' mean of 0.3: 0.3 of it and 0.1 apart.
        (20, 0.48, True),
        (20, 0.50, False),
        (20, 0.12, True),
        (20, 0.10, False),
    ],
)
def test_the_loss_curve_is_near_the_mean_of_the_epochs(
    points: int, loss: float, plausible: bool
) -> None:
    epochs = [epoch(10.0) | {"loss": 0.4}, epoch(10.0)]
    curve = [[step, loss] for step in range(1, points + 1)]
    data = quick_report(training__epochs=epochs, training__losses=[*curve, [999, None]])
    found = contradictions_of(data, epochs=2)
    assert (found == []) is plausible, found


@pytest.mark.parametrize(
    "impossible",
    [
        {"seconds": 80.0},
        {"data_seconds": -5.0, "compute_seconds": 25.0},
        {"compute_seconds": 1.0},
        {"samples_per_second": 9.0},
        {"loss": None},
        {"loss": -0.1},
        {"accuracy": 0.98415},
    ],
)
def test_an_earlier_epoch_that_is_impossible_counts_as_much_as_the_last(
    impossible: dict[str, Any],
) -> None:
    good = quick_report(training__epochs=[epoch(10.0), epoch(10.0)])
    assert contradictions_of(good, epochs=2) == []
    good["training"]["epochs"][0].update(impossible)
    assert contradictions_of(good, epochs=2) != []


PROFILE = Expected(
    device="cpu",
    version="2.13.0+cpu",
    extension="zentorch",
    kernels=("aten::mm", "zentorch::"),
    compile=("zentorch",),
)
NEEDED = ("extension zentorch", "kernels", "compile zentorch")


def of_profile(*, without: str = "", status: str = "passed") -> list[str]:
    """The contradictions of a full report of `PROFILE` without one of its own checks."""
    request = consistency.request_for(PROFILE, FULL, epochs=1, quick=False)
    data = measured(dataset__sha256={})
    own = [{"name": n, "status": "passed", "seconds": 0.0, "detail": ""} for n in NEEDED]
    data["checks"] += [c | {"status": status if c["name"] == without else "passed"} for c in own]
    if not status:
        data["checks"] = [check for check in data["checks"] if check["name"] != without]
    return consistency.contradictions(request, model.check(data), LIVED)


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("status", ["", "skipped"])
def test_what_the_profile_wants_checked_was_checked(name: str, status: str) -> None:
    assert of_profile() == of_profile(without=name, status="warning") == []
    (problem,) = of_profile(without=name, status=status)
    assert problem == f"{name}: this check was requested, but did not run"


def test_a_quick_run_neither_compiles_nor_looks_for_kernels() -> None:
    request = consistency.request_for(PROFILE, SUBSET, epochs=1, quick=True)
    assert "extension zentorch" in request.checks
    assert not {"kernels", "compile zentorch"} & set(request.checks)


def test_epochs_that_do_not_fit_their_rate() -> None:
    data = quick_report()
    short = {"seconds": 0.001, "data_seconds": 0.0005, "compute_seconds": 0.0005}
    data["training"]["epochs"][0] |= short
    (problem,) = contradictions_of(data)
    assert problem == "epoch 1: 3000 images in 0.001 s do not give 150.0 per second"


def test_checks_longer_than_the_process_lived() -> None:
    found = contradictions(seconds=10.0)
    assert any(s.startswith("the checks took 1") for s in found)


def at_once(seconds: float, lived: float) -> list[str]:
    """The contradictions of a report whose work took `seconds`, and its checks no time."""
    data = quick_report(training__epochs=[epoch(seconds)], training__cold_start_seconds=None)
    data["checks"] = [{**check, "seconds": 0.0} for check in data["checks"]]
    return contradictions_of(data, lived)


def test_work_may_take_all_of_a_process_and_no_more() -> None:
    assert at_once(0.5, lived=0.5) == []
    assert at_once(0.5, lived=0.499) == [
        "training took 0.50 s, but its process only ran for 0.50 s"
    ]


@pytest.mark.parametrize(("lacking", "plausible"), [(0.0009, True), (0.0011, False)])
def test_the_time_of_each_check_may_be_rounded_up(lacking: float, plausible: bool) -> None:
    data = quick_report(training__epochs=[epoch(1e-4)], training__cold_start_seconds=None)
    lived = sum(check["seconds"] - lacking for check in data["checks"]) + 1e-4
    found = contradictions_of(data, lived)
    assert (found == []) is plausible, found


def test_what_a_report_says_is_quoted_in_part() -> None:
    (problem,) = contradictions(dataset__name="x" * 500)
    assert "x" * 50 in problem
    assert len(problem) < 150


@pytest.mark.parametrize(
    ("stated", "data", "epochs", "expected"),
    [
        (None, FULL, 1, MEASURED),
        (None, SUBSET, 1, ONE),
        (None, SUBSET, 9, QUICK[2]),
        (0.975, FULL, 1, Gates(0.975, pytest.approx(0.42), pytest.approx(0.42))),
        (0.96, PART, 1, Gates(0.96, pytest.approx(0.552), pytest.approx(0.552))),
        (None, PART, 1, Gates(0.975, pytest.approx(0.42), pytest.approx(0.42))),
        (0.0, SUBSET, 1, Gates(0.0, pytest.approx(9.0), pytest.approx(9.0))),
    ],
)
def test_a_stated_accuracy_holds_for_any_data_and_bounds_the_losses(
    stated: float | None, data: Dataset, epochs: int, expected: Gates
) -> None:
    assert gates_for(data, epochs, stated) == expected


@pytest.mark.parametrize(
    ("data", "quick", "accuracy"),
    [(FULL, False, 0.5), (FULL, True, ONE.accuracy), (SUBSET, False, ONE.accuracy)],
)
def test_only_a_full_training_has_to_reach_the_profiles_accuracy(
    data: Dataset, quick: bool, accuracy: float
) -> None:
    expects = replace(EXPECTS, accuracy=0.5)
    asked = consistency.request_for(expects, data, epochs=1, quick=quick)
    assert asked.gates.accuracy == accuracy


@pytest.mark.parametrize(
    ("quick", "epochs", "expected"),
    [(True, None, (3, QUICK[2])), (True, 1, (1, ONE)), (False, None, (1, MEASURED))],
)
def test_what_a_request_asks_for(
    quick: bool, epochs: int | None, expected: tuple[int, Gates]
) -> None:
    asked = consistency.request_for(EXPECTS, FULL, epochs=epochs, quick=quick)
    assert (asked.train, asked.test) == ((3000, 1000) if quick else (60000, 10000))
    assert (asked.epochs, asked.gates) == expected


@pytest.mark.parametrize("share", [None, 0.02, 1.0426, 1.0532, 1.1])
def test_a_share_that_noise_explains_is_no_warning(share: float | None) -> None:
    found = model.check(measured(measurements={"matmul_share": share}))
    assert consistency.matmul_rate(found) is None


def test_more_than_the_matmul_rate_is_a_warning() -> None:
    warning = consistency.matmul_rate(model.check(measured(measurements={"matmul_share": 1.27})))
    assert (warning.name, warning.status, warning.seconds) == ("matmul rate", "warning", 0.0)
    assert "127 % of the matmul rate" in warning.detail
    assert "the machine was busy" in warning.detail
    assert "Measure again on a quiet machine" in warning.detail


@pytest.mark.parametrize(
    ("requested", "reported"),
    [("", "1.0"), ("2.13.0", "2.13.0+cpu"), ("2.13.0", "2.13.0"), ("2.13.0+cpu", "2.13.0+cpu")],
)
def test_a_version_names_every_build_unless_it_has_a_local_part(
    requested: str, reported: str
) -> None:
    """An external torch may have any version."""
    expects = replace(EXPECTS, version=requested)
    report = quick_report(framework__version=reported)
    assert contradictions_of(report, expects=expects) == []
