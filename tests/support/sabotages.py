"""Every sabotage of a verification that the tests try: a name, its class, and what gives it away.

None may end as VERIFIED. `in_ci` marks those that run with the other tests, at least one of each
class; all run with `make soak` (tests/integration/torch/test_sabotage.py). Forged reports are also
judged without an environment (tests/unit/commands/test_verify.py).

Those with a test of their own are not here: other files than MNIST's, extensions, a wrong compile
backend, poisoned bytecode, memory that runs out (test_sabotage.py), and variables, wrappers and
packages from elsewhere (test_isolation.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envbuilder.payload.report import BLIND_TEST, REQUIRED, STEP
from tests.support.reports import epoch


@dataclass(frozen=True)
class Sabotage:
    """A sabotage, its class, and the check and words that name its cause."""

    name: str
    kind: str
    check: str
    words: str
    in_ci: bool = False


@dataclass(frozen=True)
class Device(Sabotage):
    """A device that is not what it says, of another profile; without a module it is missing."""

    profile: str = "cuda"
    node: str = ""
    """A fault that makes a missing device node seem to be there."""


@dataclass(frozen=True)
class Forged(Sabotage):
    """A report in place of the payload's: what it changes of a quick one that could be genuine."""

    changes: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    run_id: str = "RUN-ID"


@dataclass(frozen=True)
class Planted(Sabotage):
    """A file below an environment's site-packages, written or changed after the build."""

    content: bytes = b"\x00"


def parameters(sabotages: Iterable[Sabotage]) -> list[Any]:
    """Return them as parameters of a test; those that are not for CI are marked `soak`."""
    return [
        pytest.param(s, id=s.name or "none", marks=[] if s.in_ci else pytest.mark.soak)
        for s in sabotages
    ]


NUMBERS = (
    Sabotage("matmul_a_thousandth_off", "wrong numbers", "arithmetic", "float32 matmul", True),
    Sabotage("conv_without_weight_gradient", "gradient wrong", "arithmetic", "conv2d", True),
    Sabotage("training_without_dropout", "dropout off", "arithmetic", "float32 dropout", True),
    Sabotage("sum_that_ignores_strides", "wrong numbers", "arithmetic", "sum of a strided view"),
    Sabotage("layers_in_bfloat16", "precision lowered", "precision", "bfloat16 took part", True),
    Sabotage("autocast_everywhere", "precision lowered", "precision", "autocast is in effect"),
    Sabotage("lower_matmul_precision", "precision lowered", "precision", "bfloat16 is in effect"),
    Sabotage("newer_precision_setting", "precision lowered", "precision", "bfloat16 is in effect"),
    Sabotage("profiler_that_sees_nothing", "profiler lies", "device used", "no convolution", True),
    Sabotage("profiler_that_invents_kernels", "profiler lies", "device used", "work elsewhere"),
    Sabotage("clock_that_stops", "clock", "run", "the clock that times the work moved by -", True),
)
"""Faults of torch that a payload sees on a few images, without a word from outside."""

LEARNING = (
    Sabotage("half_of_the_images_twice", "other data", "run", "each image once", True),
    Sabotage("labels_shuffled_in_memory", "other data", BLIND_TEST, "is needed"),
    Sabotage("images_altered_in_memory", "other data", "step", "wrong"),
    Sabotage("tested_on_training_data", "labels leak", BLIND_TEST, "the payload reported", True),
    Sabotage("labels_of_the_test_moved", "other data", BLIND_TEST, "the payload reported"),
    Sabotage("nothing_learned", "nothing learned", BLIND_TEST, "is needed"),
    Sabotage("optimizer_that_does_nothing", "optimizer no-op", BLIND_TEST, "is needed", True),
    Sabotage("loss_that_is_nan", "nothing learned", STEP, "loss is not finite"),
    Sabotage("learning_made_up", "nothing learned", BLIND_TEST, "but", True),
    Sabotage("epoch_shorter_than_it_was", "clock", "run", "measured from outside it took"),
)
"""Faults that a whole verification sees."""

STEPS = (
    Sabotage("layer_without_gradient", "gradient wrong", "step", "changes conv1"),
    Sabotage("loss_with_a_wrong_gradient", "gradient wrong", "step", "wrong"),
    Sabotage("every_second_update_skipped", "step wrong", "step", "step 2, in epoch 1,"),
    Sabotage("gradients_of_the_step_before", "step wrong", "step", "step 2, in epoch 1, changes"),
    Sabotage("zero_grad_without_effect", "step wrong", BLIND_TEST, "is needed"),
    Sabotage("images_not_shuffled", "other data", "step", "of epoch 1 were not shuffled"),
    Sabotage("loss_of_half_a_batch", "step wrong", "step", "reports a loss that is wrong"),
    Sabotage("weights_rounded_to_bfloat16", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("scheduler_without_effect", "step wrong", "step", "step 48, in epoch 2, changes"),
    Sabotage("a_fifth_of_the_learning_rate", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("leaky_relu", "step wrong", "step", "step 1, in epoch 1, "),
    # Ten more.
    Sabotage("updates_lost_from_step_50", "step wrong", "step", ", in epoch 2, changes", True),
    Sabotage("the_same_order_in_each_epoch", "other data", "step", "took images in a similar"),
    Sabotage("one_dropout_mask", "dropout off", "step", "always drops the same units"),
    Sabotage("averages_in_bfloat16", "step wrong", "step", "wrong"),
    Sabotage("another_decay_of_averages", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("weights_that_decay", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("clipped_gradients", "step wrong", BLIND_TEST, "is needed"),
    Sabotage("smoothed_labels", "step wrong", BLIND_TEST, "the training loss is"),
    Sabotage("bfloat16_in_training_alone", "step wrong", "step", "wrong"),
    Sabotage("images_shifted_in_training", "step wrong", "step", "reports a loss that is wrong"),
    Sabotage(
        "trained_before_it_starts",
        "trained before",
        "step",
        "does not look freshly initialized",
        True,
    ),
    Sabotage("masks_of_the_epoch_before", "dropout off", "step", "always drops the same units"),
    Sabotage("answers_in_float16", "answers wrong", "step", "not answered by the trained", True),
    Sabotage("answers_of_stale_weights", "answers wrong", "step", "not answered by the trained"),
    Sabotage("answers_of_a_leaky_relu", "answers wrong", "step", "not answered by the trained"),
    Sabotage("answers_to_other_constants", "answers wrong", "step", "not answered by the trained"),
    Sabotage("answers_looked_up", "answers wrong", "step", "not answered by the trained"),
    # 24 more.
    Sabotage("biases_of_zero", "trained before", "step", "scratch: conv1.bias "),
    Sabotage(
        "weights_of_another_initialiser",
        "trained before",
        "step",
        "does not look freshly initialized",
    ),
    Sabotage("images_mirrored_in_training", "other data", BLIND_TEST, "is needed"),
    Sabotage("images_of_few_grey_levels", "other data", "step", "reports a loss that is wrong"),
    Sabotage("noise_in_training", "other data", "step", "step 1, in epoch 1, changes"),
    Sabotage("two_classes_exchanged", "other data", BLIND_TEST, "is needed"),
    Sabotage("average_for_maximum", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("relu_with_a_ceiling", "step wrong", "step", "reports a loss that is wrong"),
    Sabotage("temperature_in_training", "step wrong", "step", "wrong"),
    Sabotage("dropout_without_its_scale", "dropout off", BLIND_TEST, "but"),
    Sabotage("gradient_of_a_bias_lost", "gradient wrong", "step", "changes fc1.bias"),
    Sabotage("gradients_with_noise", "gradient wrong", "step", "wrong"),
    Sabotage("gradients_in_float16", "gradient wrong", "step", "half of the steps are wrong"),
    Sabotage("results_rounded_down", "precision lowered", "step", "wrong"),
    Sabotage("another_epsilon", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("a_learning_rate_that_falls_in_an_epoch", "step wrong", "step", "changes"),
    Sabotage("first_layer_frozen_after_ten_steps", "step wrong", "step", "changes conv1.weight"),
    Sabotage("loss_that_is_averaged", "step wrong", "step", "reports a loss that is wrong"),
    Sabotage("weights_of_an_average", "answers wrong", "step", "not answered by the trained"),
    Sabotage("answers_of_shifted_images_too", "answers wrong", "step", "not answered by the"),
    Sabotage("answers_with_three_decimals", "answers wrong", "step", "not answered by the"),
    Sabotage("answers_of_eight_bits", "answers wrong", "step", "not answered by the trained"),
    Sabotage("answers_of_a_few_images_guessed", "answers wrong", BLIND_TEST, "but"),
    Sabotage("a_tenth_of_a_clock", "clock", "clock", "no duration can be trusted"),
    Sabotage("a_fiftieth_of_a_clock", "clock", "clock", "no duration can be trusted"),
)
"""Faults of training that one step does not show, or that change the reference alike.

They are found outside of the environment. A fault in a compiled step alone is JAX's and
TensorFlow's.
"""

CLOCKS = (
    Sabotage("time_runs_backwards", "clock", "run", "the clock that times the work moved by -"),
    Sabotage("time_runs_slowly", "clock", "clock", "no duration can be trusted"),
)

DEVICES = (
    Device("", "device faked", "build", "is a cpu build and cannot use cuda"),
    Device("cuda_that_is_not_there", "device faked", "device", "not compiled with CUDA", True),
    Device(
        "device_that_fails_at_first_use",
        "device faked",
        "device",
        "mps cannot compute",
        True,
        "mps",
    ),
    Device("", "device faked", "device", "/dev/kfd cannot be used", True, "rocm"),
    Device(
        "",
        "device faked",
        "build",
        "is a cpu build and cannot use rocm",
        False,
        "rocm",
        node="kfd_that_is_null",
    ),
    Device(
        "hip_that_is_not_there",
        "device faked",
        "device",
        "not compiled with CUDA",
        profile="rocm",
        node="kfd_that_is_null",
    ),
)

TENSORFLOW_DEVICES = (
    Sabotage("", "device faked", "build", "is a cpu build and cannot use cuda"),
    Sabotage("cuda_that_is_not_there", "device faked", "device", "no cuda device can be used"),
    Sabotage("gpu_that_does_not_compute", "device faked", "device", "cuda cannot compute"),
    Sabotage("device_that_is_the_cpu", "device faked", "device used", "lived on CPU", True),
)

TENSORFLOW_NUMBERS = (
    Sabotage("mixed_precision_by_rewriting", "precision lowered", "precision", "autocast is in"),
    Sabotage("tf32_that_stays_on", "precision lowered", "precision", "tf32 is in effect"),
    Sabotage("profiler_that_sees_nothing", "profiler lies", "device used", "no convolution"),
    Sabotage("profiler_that_invents_kernels", "profiler lies", "device used", "work elsewhere"),
)

TENSORFLOW_LEARNING = (
    Sabotage("loss_that_is_nan", "nothing learned", STEP, "loss is not finite"),
    Sabotage("optimizer_that_does_nothing", "optimizer no-op", BLIND_TEST, "is needed"),
    Sabotage("labels_shuffled_in_memory", "other data", BLIND_TEST, "is needed"),
    Sabotage("images_altered_in_memory", "other data", "step", "not answered by"),
    Sabotage("half_of_the_images_twice", "other data", "run", "each image once"),
    Sabotage("tested_on_training_data", "labels leak", BLIND_TEST, "is needed"),
)

DEATHS = (
    Sabotage("killed", "payload ends", "run", "killed (signal 9)", True),
    Sabotage("crashed", "payload ends", "run", "ended by signal 11"),
)

ALL_CHECKS: list[dict[str, Any]] = [
    {"name": n, "status": "passed", "seconds": 0.01, "detail": ""}
    for n in (BLIND_TEST, "arithmetic", *REQUIRED, STEP)
]
PASS = epoch(0.4)
SHORT = {"training__cold_start_seconds": 0.1, "checks": ALL_CHECKS, "training__epochs": [PASS]}
"""What a payload could report of a quick run that really took a second."""


def _forged(name: str, words: str, in_ci: bool = False, **changes: Any) -> Forged:
    own = {k: changes.pop(k) for k in ("code", "run_id") if k in changes}
    whole = {**SHORT, **changes}
    return Forged(name, "report forged", "run", words, in_ci, changes=whole, **own)


def _with(check: dict[str, Any]) -> list[dict[str, Any]]:
    return [check if c["name"] == check["name"] else c for c in ALL_CHECKS]


FORGED = (
    _forged("trained nothing", "its start or end was not observed", True),
    _forged("of another run", "belongs to another run", True, run_id="0123456789abcdef"),
    _forged("exit code of a failure", "the payload ended with exit code 5", True, code=5),
    _forged("without checks", "without these checks: isolation, import", checks=[]),
    _forged(
        "without the last check",
        "without these checks: clock",
        checks=[*ALL_CHECKS[:-2], ALL_CHECKS[-1]],
    ),
    _forged("without a step", "without these checks: step", checks=ALL_CHECKS[:-1]),
    _forged("without a blind test", "without these checks: blind", checks=ALL_CHECKS[1:]),
    _forged(
        "a check that is skipped",
        "arithmetic: this check was requested, but did not run",
        checks=_with({"name": "arithmetic", "status": "skipped", "seconds": 0.0, "detail": ""}),
    ),
    _forged(
        "a check that failed",
        "these checks failed: arithmetic",
        checks=_with({"name": "arithmetic", "status": "failed", "seconds": 0.0, "detail": ""}),
    ),
    _forged(
        "a check of negative duration",
        "clock took -1 s",
        checks=_with({"name": "clock", "status": "passed", "seconds": -1.0, "detail": ""}),
    ),
    _forged("a loss that is not finite", "is not finite", training__losses=[[1, float("nan")]]),
    _forged("an epoch of negative duration", "an epoch took -1 s", training__epochs=[epoch(-1.0)]),
    _forged("no epoch", "passed without a trained epoch", training__epochs=[]),
    _forged("no training", "passed without a trained epoch", training=None),
    _forged("an accuracy above one", "an accuracy of 1.5", training__epochs=[epoch(0.4, 1.5)]),
    _forged("work of another device", "passed on cuda", device__used="cuda"),
    _forged(
        "another device altogether",
        "device: cpu was requested, but cuda is reported",
        device={"requested": "cuda", "used": "cuda"},
    ),
    _forged(
        "sums that do not add up", "but its parts", training__epochs=[{**PASS, "seconds": 0.001}]
    ),
    _forged(
        "negative parts of an epoch",
        "but its parts",
        training__epochs=[{**PASS, "data_seconds": -1.0, "compute_seconds": 1.4}],
    ),
    _forged("more epochs than requested", "epochs: 1 was requested", training__epochs=[PASS, PASS]),
    _forged(
        "an earlier epoch that is impossible",
        "an epoch took -0.4 s",
        training__epochs=[{**PASS, "seconds": -0.4}, PASS],
    ),
    _forged("images that it had not", "training images: 3000 was", dataset__train=60_000),
    _forged("a full run", "quick: True was requested, but False", quick=False),
    _forged("other data", "the data's sha256", dataset__sha256={}),
    _forged("another name of the data", "data: MNIST subset", dataset__name="MNIST"),
    _forged("another precision", "precision: float32 was requested", precision__dtype="bfloat16"),
    _forged("another batch", "batch: 64 was requested", training__batch=640),
    _forged(
        "a loss curve of another training",
        "that of the loss curve is 2.300",
        training__losses=[[n, 2.3] for n in range(1, 48)],
    ),
    _forged(
        "longer than it lived",
        "took 9999999.00 s, but its process",
        training__epochs=[epoch(9_999_999.0)],
    ),
    _forged("a negative cold start", "starting took -3.00 s", training__cold_start_seconds=-3.0),
    _forged("a speed-up of no baseline", "the speed-up 3.00 does not match", speedup=3.0),
    _forged(
        "several devices",
        "several devices: not requested",
        scaling={
            "devices": [{"index": 0, "samples_per_second": 1.0}],
            "ranks": 1,
            "status": "passed",
        },
    ),
    _forged(
        "two ranks on one device",
        "passed with 2 ranks on 1 devices",
        scaling={
            "devices": [{"index": 0, "samples_per_second": 1.0}] * 2,
            "ranks": 2,
            "status": "passed",
            "efficiency": 0.9,
            "gradients_equal": True,
        },
    ),
    _forged(
        "ranks with different gradients",
        "the ranks did not train together",
        scaling={
            "devices": [{"index": n, "samples_per_second": 1.0} for n in (0, 1)],
            "ranks": 2,
            "status": "passed",
            "efficiency": 0.9,
            "gradients_equal": False,
        },
    ),
)
"""Reports that say `passed` and cannot be true."""

PLANTED = (
    Planted("sitecustomize.py", "framework shadowed", "run", "sitecustomize.py (added)", True),
    Planted("usercustomize.py", "framework shadowed", "run", "usercustomize.py (added)"),
    Planted("sitecustomize.pyc", "framework shadowed", "run", "sitecustomize.pyc (added)"),
    Planted("torch/_helper.pyc", "framework shadowed", "run", "torch/_helper.pyc (added)"),
    Planted("json.py", "framework shadowed", "run", "json.py (added)"),
    Planted("paths.pth", "framework shadowed", "run", "paths.pth (added)", content=b"/tmp\n"),
    Planted(
        "torch/version.py", "changed after the build", "run", "torch/version.py (changed)", True
    ),
    Planted("torch/nn/functional.py", "changed after the build", "run", "functional.py (changed)"),
    Planted("torch/lib/libtorch_cpu.so", "changed after the build", "run", "_cpu.so (changed)"),
)
"""Files of a sealed environment, of any content."""

EVERY: tuple[Sabotage, ...] = (
    *NUMBERS,
    *LEARNING,
    *STEPS,
    *CLOCKS,
    *DEVICES,
    *DEATHS,
    *FORGED,
    *PLANTED,
)

TENSORFLOW_STEPS = (
    Sabotage("training_without_dropout", "dropout off", "step", "step 1, in epoch 1,"),
    Sabotage("graphs_with_half_an_update", "step wrong", "step", "step 1, in epoch 1, changes"),
    Sabotage("conv_without_weight_gradient", "gradient wrong", "step", "wrong"),
    Sabotage("graphs_with_a_wrong_gradient", "gradient wrong", "step", "wrong"),
    Sabotage("loss_with_a_wrong_gradient", "gradient wrong", "step", "wrong"),
    Sabotage("matmul_a_thousandth_off", "wrong numbers", "step", "wrong"),
    Sabotage("convolutions_in_bfloat16", "wrong numbers", "step", "wrong"),
)

OF_TENSORFLOW: tuple[Sabotage, ...] = (
    *TENSORFLOW_STEPS,
    *TENSORFLOW_DEVICES,
    *TENSORFLOW_NUMBERS,
    *TENSORFLOW_LEARNING,
)


def plant(site: Path, planted: Planted) -> None:
    """Write it; a file that is there is replaced, not written through a link that it may share."""
    file = site / planted.name
    content = file.read_bytes() if file.exists() else b""
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content + planted.content)
