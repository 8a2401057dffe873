"""The checks that ask a framework: what they pass on, and what they make of it."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload import checks
from envbuilder.payload.events import Events
from envbuilder.payload.interface import Comparison, Kernel, Observation, Tensors
from envbuilder.payload.numerics.arithmetic import HALVES
from envbuilder.payload.numerics.numerics import QUICK_TRIALS, TRIALS
from envbuilder.payload.options import Options
from envbuilder.payload.report import PASSED, WARNING, CheckError
from envbuilder.payload.run import Run
from envbuilder.payload.training.dataset import SIDE, SUBSET_SHA256, Dataset, Split
from tests.support.recorded import replaced

DATA = Dataset("few", Split(b"aabbcc", b"abc", 2), Split(b"ddee", b"de", 2), dict(SUBSET_SHA256))


def a_run(device: str = "cpu", data: Dataset = DATA, **options: Any) -> Run:
    return Run(Options(device, **options), data, Events(io.StringIO()))


def framework(**parts: Any) -> Any:
    """As much of a framework as a check needs."""
    return SimpleNamespace(**parts)


class Jaxlike(SimpleNamespace):
    """An imported framework."""

    version = "0.12.0.1"

    def extend(self, names: tuple[str, ...]) -> None:
        self.extended = names


@pytest.mark.parametrize("chosen", [None, "2"])
def test_the_framework_is_imported_for_the_device_with_the_threads_decided(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    imported = replaced(monkeypatch, checks.frameworks, "load", Jaxlike())
    run = a_run("cuda", framework="jax", version="0.12.0.1", extensions=("ipex",))
    run.threads = {"OMP_NUM_THREADS": chosen, "decided": 3}
    assert checks.check_import(run) == (PASSED, "jax 0.12.0.1")
    assert imported.calls == [("jax", "cuda", None if chosen else 3)]
    assert run.framework is imported.value
    assert imported.value.extended == ("ipex",)


def test_data_that_nobody_published_are_a_warning() -> None:
    counts = "2 training and 2 test images of few"
    assert checks.check_dataset(DATA) == (PASSED, counts)
    status, detail = checks.check_dataset(Dataset("few", DATA.train, DATA.test, {}))
    assert (status, detail.partition("; ")[0]) == (WARNING, counts)
    assert "neither MNIST nor the shipped subset" in detail


COPIED = {
    "training images": b"aabb",
    "training labels": b"ab",
    "test images": b"ddee",
    "test labels": b"de",
}


def copied(run: Run, **changes: bytes) -> tuple[str, str]:
    on_device = {**COPIED, **{name.replace("_", " "): value for name, value in changes.items()}}
    run.tensors = tuple(
        Tensors(on_device[f"{name} images"], on_device[f"{name} labels"])
        for name in ("training", "test")
    )
    return checks.check_copied(run, framework(content=bytes))


def test_only_the_images_that_are_used_are_copied() -> None:
    expected = "images and labels on cuda are those that were read"
    assert copied(a_run("cuda")) == (PASSED, expected)


@pytest.mark.parametrize("name", COPIED)
def test_data_that_changed_on_their_way_to_the_device(name: str) -> None:
    with pytest.raises(CheckError) as caught:
        copied(a_run("cuda"), **{name.replace(" ", "_"): b"zz"})
    assert str(caught.value) == f"the {name} on cuda are not those that were read from the file"


def layer(share: float, factor: float = 2.0, evaluated: float = 1.0) -> Any:
    """What a dropout layer that drops `share` makes of 1000 ones, in training and evaluation."""
    dropped = round(share * 1000)
    return [0.0] * dropped + [factor] * (1000 - dropped), [evaluated] * 1000


def dropped(monkeypatch: pytest.MonkeyPatch, *layers: Any) -> tuple[str, str]:
    monkeypatch.setattr(checks, "DROPPED_FROM", 1000)

    def dropouts(count: int, share: float) -> list[Any]:
        assert (count, share) == (1000, 0.5)
        return list(layers)

    return checks.check_dropout(a_run("cuda"), framework(dropouts=dropouts))


def test_every_dropout_drops_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "a half drops 50.9% in training and nothing in evaluation"
    assert dropped(monkeypatch, layer(0.509), layer(0.489)) == (PASSED, expected)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (layer(0.0), "dropout of a half dropped 0% in training"),
        (layer(0.48), "dropped 48% in training"),
        (layer(0.52), "dropped 52% in training"),
        (layer(0.5, factor=1.0), "dropped 50% in training"),
        (layer(0.5, evaluated=0.5), "dropout also changes numbers in evaluation mode"),
    ],
)
def test_dropout_that_drops_nothing_or_always(
    monkeypatch: pytest.MonkeyPatch, wrong: Any, words: str, first: bool
) -> None:
    layers = [wrong, layer(0.5)] if first else [layer(0.5), wrong]
    with pytest.raises(CheckError, match=words):
        dropped(monkeypatch, *layers)


def test_shared_memory_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, checks.hardware, "shared_problem", ("", "64 MiB"))
    assert checks.check_shared_memory() == (PASSED, "64 MiB")


@pytest.mark.parametrize(("count", "epochs"), [(1, "1 epoch"), (2, "2 epochs")])
def test_accuracy_and_learning_are_told_in_numbers(count: int, epochs: str) -> None:
    run = a_run(min_accuracy=0.9)
    run.epochs = [{"loss": 0.25, "accuracy": 0.9875}] * count
    run.moved = {"conv1.weight": checks.LEAST_MOVE, "fc1.bias": 0.1}
    text = f"98.75% after {epochs}, at least 90.00% is needed"
    assert checks.check_accuracy(run) == (PASSED, text)
    most = f"{run.options.gates_for(DATA).loss:.2f}"
    learned = f"loss 0.250, at most {most} is allowed; all 2 moved"
    assert checks.check_learning(run) == (PASSED, learned)


def test_every_parameter_that_stood_still_is_named() -> None:
    run = a_run()
    run.epochs, run.moved = [{"loss": 0.1}], {"a": 0.0, "b": 1e-4, "c": 1.0}
    with pytest.raises(CheckError) as caught:
        checks.check_learning(run)
    assert str(caught.value) == "the training did not change a, b"
    run.epochs, run.moved = [{"loss": run.options.gates_for(DATA).loss}], {"c": 1.0}
    assert checks.check_learning(run)[0] == PASSED


def test_the_questions_are_answered_from_their_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    answered = replaced(monkeypatch, checks.blind_test, "answer", 40)
    run, job, ready = a_run(questions=tmp_path), framework(), framework()
    expected = (PASSED, "40 images without labels were answered")
    assert checks.check_answers(run, ready, job) == expected
    assert answered.calls == [(ready, job, tmp_path, run.events)]


def test_the_device_must_have_grown_by_the_data() -> None:
    run, ready = a_run("cuda"), framework(device_type=lambda: "gpu")
    run.observed = Observation((Kernel("sgemm", 1.0, True),))
    run.tensors = (Tensors([0], [0]), Tensors([0, 0], [0, 0]))
    needed = 3 * SIDE * SIDE
    how = f"the profiler saw 1 different kernels on cuda; its memory grew by {needed} bytes"
    text = f"parameters, gradients and activations were on cuda; {how}"
    assert checks.check_device_used(run, ready, ("gpu",), needed) == (PASSED, text)
    with pytest.raises(CheckError) as caught:
        checks.check_device_used(run, ready, ("cpu", "gpu"), needed - 1)
    assert str(caught.value) == (
        f"tensors of the training step lived on cpu, gpu; the memory of cuda grew by {needed - 1}"
        f" bytes, less than the data's {needed}; {how.replace(f'{needed} b', f'{needed - 1} b')}"
    )


def test_the_precision_is_held_against_what_was_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = replaced(monkeypatch, checks.precision, "problems", [])
    run = a_run(precision="bfloat16")
    run.precision = {"after": 1}
    expected = (PASSED, "bfloat16 throughout")
    assert checks.check_precision(run, {"before": 1}, ("bfloat16",)) == expected
    assert compared.calls == [("bfloat16", {"before": 1}, {"after": 1}, ("bfloat16",))]
    compared.value = ["one", "another"]
    with pytest.raises(CheckError, match=r"^one; another$"):
        checks.check_precision(run, {}, ())


@pytest.mark.parametrize("bad", [(), ("bfloat16",), ("float32", "float16")])
def test_arithmetic_is_checked_in_every_dtype(
    bad: tuple[str, ...],
) -> None:
    asked: list[Any] = []

    def errors(dtype: str, stated: str) -> Any:
        asked.append((dtype, stated))
        wrong = [f"conv in {dtype}"] if dtype in bad else []
        return SimpleNamespace(wrong=lambda: wrong, phrase=lambda: f"{dtype} 1e-7")

    ready = framework(arithmetic=errors)
    run = a_run("xpu", precision="tf32")
    dtypes = ("float32", *HALVES)
    phrases = "; ".join(f"{dtype} 1e-7" for dtype in dtypes)
    if bad:
        with pytest.raises(CheckError) as caught:
            checks.check_arithmetic(run, ready)
        named = ", ".join(f"conv in {dtype}" for dtype in dtypes if dtype in bad)
        assert str(caught.value) == f"wrong numbers against float64: {named}; of {phrases}"
    else:
        assert checks.check_arithmetic(run, ready) == (PASSED, f"against float64: {phrases}")
    assert asked == [(dtype, "tf32") for dtype in dtypes]


@pytest.mark.parametrize("quick", [True, False])
def test_two_trainings_are_compared_on_the_same_batches(
    monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    steps = checks.QUICK_SEEDED_STEPS if quick else checks.SEEDED_STEPS
    asked: list[Any] = []

    def batches(data: Any, count: int) -> list[str]:
        asked.append((data, count))
        return ["a batch"]

    ready = framework(batches=batches)
    compared = replaced(monkeypatch, checks, "compare_seeded", {"equal": True})
    run = a_run(quick=quick, seed=5)
    run.tensors = ("training",)  # type: ignore[assignment]
    text = f"two trainings of {steps} steps from one seed give equal weights"
    assert checks.check_determinism(run, ready) == (PASSED, text)
    assert asked == [("training", steps)]
    assert compared.calls == [(ready, 5, ["a batch"])]


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_measured(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    asked: list[Any] = []

    def measure(bench: Any, epoch: Any, peak: Any, progress: Any) -> dict[str, Any]:
        asked.extend([bench, epoch, peak])
        progress(1, 2)
        rates = [{"dtype": d, "flops_per_second": 2e11} for d in ("float32", "bfloat16")]
        return {"matmul": rates}

    monkeypatch.setattr(checks.measure, "measure", measure)
    ready = framework(accelerator="cpu", threads=lambda: {"framework": 2})
    stream = io.StringIO()
    run = Run(Options("cpu", quick=quick), DATA, Events(stream))
    run.job = job = framework()
    run.tensors = ("training", "test")  # type: ignore[assignment]
    run.epochs, run.peak_memory = [{"seconds": n} for n in (1.0, 3.0, 2.0)], 99
    rates = "matmul in operations a second: float32 2.00e+11, bfloat16 2.00e+11"
    assert checks.check_measurements(run, ready) == (PASSED, rates)
    bench, epoch, peak = asked
    assert (bench.framework, bench.trained, bench.seed) == (ready, job, 1)
    assert bench.budget is (checks.measure.QUICK if quick else checks.measure.FULL)
    assert (bench.data, bench.test) == ("training", "test")
    assert (epoch, peak) == ({"seconds": 2.0}, 99)
    assert '"phase": "measurements"' in stream.getvalue()
    assert run.disturbances["measurements"]["threads"] == 2


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("error", "passes"), [(1e-5, True), (0.5, False)])
def test_gradients(quick: bool, error: float, passes: bool) -> None:
    asked: list[Any] = []

    def gradients(data: Any, count: int) -> Comparison:
        asked.append((data, count))
        return Comparison(0.0, {"conv1.weight": error})

    ready = framework(gradients=gradients)
    run = a_run(quick=quick)
    run.tensors = ("training",)  # type: ignore[assignment]
    count = QUICK_TRIALS if quick else TRIALS
    limits = f"(conv1.weight; {count} steps of 64, tolerance {run.tolerance:.0e})"
    if passes:
        text = f"largest relative error against float64 1.0e-05 {limits}"
        assert checks.check_gradients(run, ready) == (PASSED, text)
    else:
        with pytest.raises(CheckError) as caught:
            checks.check_gradients(run, ready)
        wrong = "training steps give wrong gradients against float64: relative error 0.5 "
        assert str(caught.value) == wrong + limits
    assert asked == [("training", count)]
