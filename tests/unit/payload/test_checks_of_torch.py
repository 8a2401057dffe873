"""The checks that ask torch and what measures it: what they pass on, and what they make of it."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload import checks
from envbuilder.payload.events import Events
from envbuilder.payload.numerics.arithmetic import HALVES
from envbuilder.payload.numerics.compilers import Outcome
from envbuilder.payload.numerics.numerics import QUICK_TRIALS, TRIALS, Comparison
from envbuilder.payload.numerics.profiling import Kernel, Observation
from envbuilder.payload.options import Options
from envbuilder.payload.report import PASSED, WARNING, CheckError
from envbuilder.payload.run import Run
from envbuilder.payload.training.dataset import SUBSET_SHA256, Dataset, Split

DATA = Dataset("few", Split(b"aabbcc", b"abc", 2), Split(b"ddee", b"de", 2), dict(SUBSET_SHA256))
TORCH: Any = SimpleNamespace(__version__="2.13.0+cpu", set_num_threads=lambda count: None)
FORM = checks.model.fastest("cpu")


def a_run(device: str = "cpu", data: Dataset = DATA, **options: Any) -> Run:
    return Run(Options(device, **options), data, Events(io.StringIO()))


class Recorded:
    """A function that keeps what it was called with, and returns one value."""

    def __init__(self, value: Any = None) -> None:
        self.value, self.calls = value, []  # type: Any, list[Any]

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        return self.value


def replaced(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any) -> Recorded:
    recorded = Recorded(value)
    monkeypatch.setattr(module, name, recorded)
    return recorded


def test_an_extension_is_tried_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = replaced(monkeypatch, checks.extensions, "require_importable", "it imports")
    assert checks.check_extension("zentorch") == (PASSED, "it imports")
    assert tried.calls == [("zentorch",)]


@pytest.mark.parametrize(("names", "loaded"), [(("ipex",), True), (("zentorch",), False)])
def test_only_ipex_is_loaded_with_torch(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], loaded: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", TORCH)
    ipex = replaced(monkeypatch, checks.extensions, "load", "the extension")
    run = a_run(extensions=names)
    run.threads = {"OMP_NUM_THREADS": "2"}
    assert checks.check_import(run) == (PASSED, "torch 2.13.0+cpu")
    assert run.torch is TORCH
    assert run.ipex == ("the extension" if loaded else None)
    assert ipex.calls == ([("ipex",)] if loaded else [])


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


def copied(run: Run, monkeypatch: pytest.MonkeyPatch, **changes: bytes) -> tuple[str, str]:
    def content(torch: Any, tensor: bytes) -> bytes:
        assert torch is TORCH
        return tensor

    monkeypatch.setattr(checks.train, "content", content)
    on_device = {**COPIED, **{name.replace("_", " "): value for name, value in changes.items()}}
    run.tensors = tuple(
        checks.train.Tensors(on_device[f"{name} images"], on_device[f"{name} labels"])
        for name in ("training", "test")
    )
    return checks.check_copied(run, TORCH)


def test_only_the_images_that_are_used_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "images and labels on cuda are those that were read"
    assert copied(a_run("cuda"), monkeypatch) == (PASSED, expected)


@pytest.mark.parametrize("name", COPIED)
def test_data_that_changed_on_their_way_to_the_device(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(CheckError) as caught:
        copied(a_run("cuda"), monkeypatch, **{name.replace(" ", "_"): b"zz"})
    assert str(caught.value) == f"the {name} on cuda are not those that were read from the file"


class Values(list[float]):
    """As much of a tensor as a check of dropout needs."""

    def __eq__(self, other: object) -> Any:
        return Values(float(value == other) for value in self)

    def __ne__(self, other: object) -> Any:
        return Values(float(value != other) for value in self)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, mask: Any) -> Any:
        return Values(value for value, kept in zip(self, mask, strict=True) if kept)

    def to(self, device: str) -> Values:
        assert device == "cpu"
        return self

    def double(self) -> Values:
        return self

    def mean(self) -> float:
        return sum(self) / len(self)


class Dropout:
    """A dropout layer that drops `share` and multiplies the rest; what it does in evaluation."""

    def __init__(self, share: float, factor: float = 2.0, evaluated: float = 1.0) -> None:
        self.share, self.factor, self.evaluated = share, factor, evaluated
        self.training: bool | None = None

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    def __call__(self, values: Values) -> Values:
        assert self.training is not None
        if not self.training:
            return Values([self.evaluated] * len(values))
        dropped = round(self.share * len(values))
        return Values([0.0] * dropped + [self.factor] * (len(values) - dropped))


def dropped(monkeypatch: pytest.MonkeyPatch, *layers: Dropout) -> tuple[str, str]:
    waiting = list(layers)
    forms: list[Any] = []

    def drop(torch: Any, share: float, form: Any) -> Dropout:
        assert (torch, share) == (pretended, 0.5)
        forms.append(form)
        return waiting.pop()

    def ones(count: int, device: str | None = None) -> Values:
        places.append(device)
        return Values([1.0] * count)

    places: list[str | None] = []
    pretended = SimpleNamespace(
        ones=ones,
        full_like=lambda values, value: Values([value] * len(values)),
        equal=lambda ours, theirs: list(ours) == list(theirs),
    )
    monkeypatch.setattr(checks, "DROPPED_FROM", 1000)
    monkeypatch.setattr(checks.model, "drop", drop)
    monkeypatch.setattr(checks.model, "fastest", lambda accelerator: f"fastest on {accelerator}")
    result = checks.check_dropout(a_run("cuda"), pretended)
    assert set(forms) == {checks.model.PUBLISHED, "fastest on cuda"}
    assert set(places) == {"cuda", None}, "the values are there, what they are compared with is not"
    return result


def test_both_forms_of_dropout_drop_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "a half drops 50.9% in training and nothing in evaluation"
    assert dropped(monkeypatch, Dropout(0.509), Dropout(0.489)) == (PASSED, expected)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Dropout(0.0), "dropout of a half dropped 0% in training"),
        (Dropout(0.48), "dropped 48% in training"),
        (Dropout(0.52), "dropped 52% in training"),
        (Dropout(0.5, factor=1.0), "dropped 50% in training"),
        (Dropout(0.5, evaluated=0.5), "dropout also changes numbers in evaluation mode"),
    ],
)
def test_dropout_that_drops_nothing_or_always(
    monkeypatch: pytest.MonkeyPatch, layer: Dropout, words: str, first: bool
) -> None:
    layers = [layer, Dropout(0.5)] if first else [Dropout(0.5), layer]
    with pytest.raises(CheckError, match=words):
        dropped(monkeypatch, *layers)


def test_the_build_and_the_device_are_asked_about_the_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = replaced(monkeypatch, checks.device, "require_build", "CUDA 13.0")
    assert checks.check_build(TORCH, "cuda") == (PASSED, "CUDA 13.0")
    usable = replaced(monkeypatch, checks.device, "require_usable", "an H100")
    runtime = SimpleNamespace(runtime=lambda torch: f"runtime of {torch.__version__}")
    monkeypatch.setattr(checks, "ACCELERATORS", {"cuda": runtime})
    expected = (PASSED, "an H100; runtime of 2.13.0+cpu")
    assert checks.check_device(TORCH, "cuda") == expected
    assert build.calls == usable.calls == [(TORCH, "cuda")]


def test_shared_memory_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, checks.memory, "shared_problem", ("", "64 MiB"))
    assert checks.check_shared_memory() == (PASSED, "64 MiB")


@pytest.mark.parametrize(("count", "epochs"), [(1, "1 epoch"), (2, "2 epochs")])
def test_accuracy_and_learning_are_told_in_numbers(count: int, epochs: str) -> None:
    run = a_run(min_accuracy=0.9)
    run.epochs = [{"loss": 0.25, "accuracy": 0.9875}] * count
    run.moved = {"conv1.weight": checks.LEAST_MOVE, "fc1.bias": 0.1}
    text = f"98.75% after {epochs}, at least 90.00% is needed"
    assert checks.check_accuracy(run) == (PASSED, text)
    most = f"{run.options.most_loss_for(DATA):.2f}"
    learned = f"loss 0.250, at most {most} is allowed; all 2 moved"
    assert checks.check_learning(run) == (PASSED, learned)


def test_every_parameter_that_stood_still_is_named() -> None:
    run = a_run()
    run.epochs, run.moved = [{"loss": 0.1}], {"a": 0.0, "b": 1e-4, "c": 1.0}
    with pytest.raises(CheckError) as caught:
        checks.check_learning(run)
    assert str(caught.value) == "the training did not change a, b"
    run.epochs, run.moved = [{"loss": run.options.most_loss_for(DATA)}], {"c": 1.0}
    assert checks.check_learning(run)[0] == PASSED


def test_the_questions_are_answered_from_their_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    answered = replaced(monkeypatch, checks.blind_test, "answer", 40)
    run, job = a_run(questions=tmp_path), SimpleNamespace()
    expected = (PASSED, "40 images without labels were answered")
    assert checks.check_answers(run, job) == expected  # type: ignore[arg-type]
    assert answered.calls == [(job, tmp_path, run.events)]


def test_the_device_must_have_grown_by_the_data() -> None:
    run = a_run("cuda")
    run.observed = Observation((Kernel("sgemm", 1.0, True),))
    split = SimpleNamespace(nbytes=lambda: 50)
    run.tensors = (split, split)  # type: ignore[assignment]
    how = "the profiler saw 1 different kernels on cuda; its memory grew by 100 bytes"
    text = f"parameters, gradients and activations were on cuda; {how}"
    assert checks.check_device_used(run, ["cuda"], 100) == (PASSED, text)
    with pytest.raises(CheckError) as caught:
        checks.check_device_used(run, ["cpu", "cuda"], 99)
    assert str(caught.value) == (
        "tensors of the training step lived on cpu, cuda; the memory of cuda grew by 99 bytes,"
        f" less than the data's 100; {how.replace('100 bytes', '99 bytes')}"
    )


def test_the_precision_is_held_against_what_was_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = replaced(monkeypatch, checks.precision, "problems", [])
    run = a_run(precision="bfloat16")
    run.precision = {"after": 1}
    expected = (PASSED, "bfloat16 throughout")
    assert checks.check_precision(run, {"before": 1}, ["bfloat16"]) == expected
    assert compared.calls == [("bfloat16", {"before": 1}, {"after": 1}, ["bfloat16"])]
    compared.value = ["one", "another"]
    with pytest.raises(CheckError, match=r"^one; another$"):
        checks.check_precision(run, {}, [])


@pytest.mark.parametrize("bad", [(), ("bfloat16",), ("float32", "float16")])
def test_arithmetic_is_checked_in_every_dtype(
    monkeypatch: pytest.MonkeyPatch, bad: tuple[str, ...]
) -> None:
    asked: list[Any] = []

    def errors(torch: Any, accelerator: str, dtype: str, stated: str) -> Any:
        asked.append((torch, accelerator, dtype, stated))
        wrong = [f"conv in {dtype}"] if dtype in bad else []
        return SimpleNamespace(wrong=lambda: wrong, phrase=lambda: f"{dtype} 1e-7")

    monkeypatch.setattr(checks.arithmetic, "errors", errors)
    run = a_run("xpu", precision="tf32")
    dtypes = ("float32", *HALVES)
    phrases = "; ".join(f"{dtype} 1e-7" for dtype in dtypes)
    if bad:
        with pytest.raises(CheckError) as caught:
            checks.check_arithmetic(run, TORCH)
        named = ", ".join(f"conv in {dtype}" for dtype in dtypes if dtype in bad)
        assert str(caught.value) == f"wrong numbers against float64: {named}; of {phrases}"
    else:
        assert checks.check_arithmetic(run, TORCH) == (PASSED, f"against float64: {phrases}")
    assert asked == [(TORCH, "xpu", dtype, "tf32") for dtype in dtypes]


def test_an_autoencoder_must_learn_from_the_training_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = a_run(seed=7)
    run.tensors = ("training", "test")  # type: ignore[assignment]
    trained = replaced(
        monkeypatch, checks.vae, "train", [560.0] + [550.0] * 9 + [200.0] * 9 + [190.0]
    )
    assert checks.check_vae(run, TORCH) == (PASSED, "loss 560 to 190 in 20 steps")
    assert trained.calls == [(TORCH, "cpu", "training", 7)]
    trained.value = [550.0] * 20
    with pytest.raises(CheckError, match="went from 550 to 550"):
        checks.check_vae(run, TORCH)


@pytest.mark.parametrize("quick", [True, False])
def test_two_trainings_are_compared_on_the_same_batches(
    monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    steps = checks.determinism.QUICK_STEPS if quick else checks.determinism.STEPS
    batches = replaced(monkeypatch, checks.train, "batches", [("images", "labels")])
    monkeypatch.setattr(checks.model, "arrange", lambda *given: given)
    compared = replaced(monkeypatch, checks.determinism, "compare", {"equal": True})
    prepared = replaced(monkeypatch, checks.train, "prepare", "a new network")
    run = a_run(quick=quick, seed=5)
    run.tensors = ("training",)  # type: ignore[assignment]
    text = f"two trainings of {steps} steps from one seed give equal weights"
    assert checks.check_determinism(run, TORCH) == (PASSED, text)
    assert batches.calls == [("training", steps)]
    ((make, same),) = compared.calls
    assert same == [((TORCH, "images", FORM), "labels")]
    assert make() == "a new network"
    assert prepared.calls == [(TORCH, "cpu", FORM, 5)]


def test_a_new_network_is_optimised_as_the_trained_one_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced(monkeypatch, checks.train, "prepare", "a network")
    optimised = replaced(monkeypatch, checks.extensions, "optimize", None)
    run = a_run()
    run.ipex = "the extension"
    assert checks.make_job(run, TORCH) == "a network"
    assert optimised.calls == [("the extension", "a network")]


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_measured(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    asked: list[Any] = []

    def measure(bench: Any, epoch: Any, peak: Any, progress: Any) -> dict[str, Any]:
        asked.extend([bench, epoch, peak])
        progress(1, 2)
        rates = [{"dtype": d, "flops_per_second": 2e11} for d in ("float32", "bfloat16")]
        return {"matmul": rates}

    monkeypatch.setattr(checks.measure, "measure", measure)
    prepared = replaced(monkeypatch, checks.train, "prepare", "a new network")
    stream = io.StringIO()
    run = Run(Options("cpu", quick=quick), DATA, Events(stream))
    run.job = job = SimpleNamespace()  # type: ignore[assignment]
    run.tensors = ("training", "test")  # type: ignore[assignment]
    run.epochs, run.peak_memory = [{"seconds": n} for n in (1.0, 3.0, 2.0)], 99
    rates = "matmul in operations a second: float32 2.00e+11, bfloat16 2.00e+11"
    assert checks.check_measurements(run, TORCH) == (PASSED, rates)
    bench, epoch, peak = asked
    assert (bench.torch, bench.accelerator, bench.trained) == (TORCH, "cpu", job)
    assert bench.budget is (checks.measure.QUICK if quick else checks.measure.FULL)
    assert (bench.data, bench.test) == ("training", "test")
    assert bench.make() == "a new network"
    assert prepared.calls[0][0] is TORCH
    assert (epoch, peak) == ({"seconds": 2.0}, 99)
    assert '"phase": "measurements"' in stream.getvalue()
    assert list(run.disturbances) == ["measurements"]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("ipex", [None, "the extension"])
@pytest.mark.parametrize(("error", "passes"), [(1e-5, True), (0.5, False)])
def test_gradients(
    monkeypatch: pytest.MonkeyPatch, quick: bool, ipex: str | None, error: float, passes: bool
) -> None:
    comparison = Comparison(0.0, {"conv1.weight": error})
    trials = replaced(monkeypatch, checks.numerics, "trials", ["one", "two"])
    step = replaced(monkeypatch, checks.extensions, "ipex_step", "a step")
    compared = replaced(monkeypatch, checks.numerics, "compare", comparison)
    moved = Recorded("on the device")
    network = replaced(monkeypatch, checks.numerics, "network", SimpleNamespace(to=moved))
    checked = replaced(monkeypatch, checks.numerics, "check", comparison)
    run = a_run(quick=quick)
    run.ipex, run.tensors = ipex, ("training",)  # type: ignore[assignment]
    limits = f"(conv1.weight; 2 steps of 64, tolerance {run.tolerance:.0e})"
    if passes:
        text = f"largest relative error against float64 1.0e-05 {limits}"
        assert checks.check_gradients(run, TORCH) == (PASSED, text)
    else:
        with pytest.raises(CheckError) as caught:
            checks.check_gradients(run, TORCH)
        wrong = "training steps give wrong gradients against float64: relative error 0.5 "
        assert str(caught.value) == wrong + limits
    assert run.trials == ["one", "two"]
    assert trials.calls == [(TORCH, "training", QUICK_TRIALS if quick else TRIALS)]
    if ipex:
        assert step.calls == [(TORCH, ipex, "cpu", trial) for trial in ("one", "two")]
        assert compared.calls == [(["a step", "a step"], ["one", "two"])]
    else:
        net = "on the device"
        assert (network.calls, moved.calls) == ([(TORCH, FORM)], [("cpu",)])
        assert checked.calls == [(TORCH, FORM, net, net, ["one", "two"])]


def test_a_compile_backend_is_measured_with_the_same_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    asked: list[Any] = []

    def measure(bench: Any, backend: str, progress: Any) -> Outcome:
        asked.append(bench)
        progress(1, 2)
        return Outcome(backend)

    monkeypatch.setattr(checks.compilers, "measure", measure)
    judged = replaced(monkeypatch, checks.compilers, "verdict", (WARNING, "slower"))
    run = Run(Options("cpu"), DATA, Events(stream))
    run.tensors = ("training", "test")  # type: ignore[assignment]
    run.trials = ["one"]  # type: ignore[list-item]
    assert checks.check_compile(run, TORCH, "inductor") == (WARNING, "slower")
    (bench,) = asked
    assert bench == checks.compilers.Bench(
        TORCH,
        "cpu",
        FORM,
        "training",  # type: ignore[arg-type]
        "test",  # type: ignore[arg-type]
        ["one"],  # type: ignore[list-item]
        run.tolerance,
    )
    assert [outcome.backend for outcome in run.outcomes] == ["inductor"]
    assert judged.calls == [(run.outcomes[0], run.tolerance)]
    assert '"phase": "compile inductor"' in stream.getvalue()
