"""Ways to fool a verification of JAX, each tried on a real environment; see `torch/test_sabotage`.

Faults of clocks do not depend on the framework and are those of torch's tests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuilder.payload.report import BLIND_TEST
from tests.support import warm
from tests.support.overlays import Bench, Words

MODULES = Path(__file__).with_name("sabotage")
OF_TORCH = MODULES.parents[1] / "torch/sabotage"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Fault:
    """A module of `sabotage/`, and the check and words that name what it does."""

    name: str
    check: str
    words: str
    device: str = "cpu"
    always: bool = False


def parameters(*faults: Fault) -> list[Any]:
    """Those that do not run always are marked `soak`."""
    return [
        pytest.param(fault, id=fault.name, marks=[] if fault.always else pytest.mark.soak)
        for fault in faults
    ]


@pytest.fixture(scope="module")
def kept(jax_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm.keep(jax_prefix, "jax.numpy, jax.profiler", tmp_path_factory.mktemp("kept"))


@pytest.fixture
def bench(
    tmp_path: Path, jax_prefix: Path, session_environment: dict[str, str], kept: Path
) -> Bench:
    return Bench(tmp_path, jax_prefix, session_environment, kept, MODULES, OF_TORCH)


def arguments(fault: Fault) -> Words:
    return ("--framework", "jax", "--device", fault.device)


@pytest.mark.parametrize(
    "fault",
    parameters(
        Fault("convolutions_in_bfloat16", "precision", "bfloat16 took part"),
        Fault("lower_matmul_precision", "precision", "bfloat16 is in effect"),
        Fault("numbers_of_64_bits", "precision", "float64 is in effect"),
        Fault("profiler_that_sees_nothing", "device used", "no convolution"),
        Fault("profiler_that_invents_kernels", "device used", "work elsewhere"),
        Fault("clock_that_stops", "clock", "and the kernel"),
        Fault("device_that_is_the_cpu", "device used", "step lived on cpu", "cuda"),
    ),
)
def test_faults_that_a_few_images_show(bench: Bench, few_digits: Words, fault: Fault) -> None:
    found = bench.payload(bench.overlay.after("jax", fault.name), *arguments(fault), *few_digits)
    found.require_failed(fault.check, fault.words)


@pytest.mark.parametrize(
    "fault",
    parameters(
        Fault("gpu_that_is_not_there", "device", "no cuda device can be used", "cuda", True),
        Fault("gpu_that_is_named_so", "device", "JAX gives cpu as a device of cuda", "cuda", True),
    ),
)
def test_a_device_that_is_none(bench: Bench, few_digits: Words, fault: Fault) -> None:
    found = bench.payload(bench.overlay.after("jax", fault.name), *arguments(fault), *few_digits)
    found.require_failed(fault.check, fault.words)
    assert found.report["device"]["used"] is None


def test_an_environment_without_the_plugin_is_named(bench: Bench, few_digits: Words) -> None:
    found = bench.payload(bench.overlay, "--framework", "jax", "--device", "cuda", *few_digits)
    found.require_failed("build", "is installed without a plugin for cuda")


def test_a_setting_of_the_user_that_hides_the_device_is_named(
    bench: Bench, few_digits: Words
) -> None:
    bench.environment["JAX_PLATFORMS"] = "tpu"
    found = bench.payload(bench.overlay, "--framework", "jax", "--device", "cpu", *few_digits)
    found.require_failed("device", "JAX_PLATFORMS=tpu hides cpu")


@pytest.mark.soak
def test_without_a_fault_it_passes(bench: Bench, few_digits: Words) -> None:
    found = bench.payload(bench.overlay, "--framework", "jax", "--device", "cpu", *few_digits)
    assert (found.code, found.report["status"], found.report["reasons"]) == (0, "passed", [])
    assert found.report["framework"]["name"] == "jax"
    assert found.report["device"]["used"] == "cpu"
    assert any("convolution" in name for name in found.report["kernels"]["training"])


@pytest.mark.parametrize(
    "fault",
    parameters(
        Fault("compiled_step_with_half_an_update", "step", "step 1, in epoch 1, changes"),
        Fault("training_without_dropout", "step", "dropped 0.0%"),
        Fault("matmul_a_thousandth_off", "step", ""),
        Fault("relu_with_a_wrong_gradient", BLIND_TEST, "is needed"),
        Fault("conv_without_weight_gradient", BLIND_TEST, "is needed"),
        Fault("optimizer_that_does_nothing", BLIND_TEST, "is needed"),
        Fault("labels_shuffled_in_memory", BLIND_TEST, "is needed"),
        Fault("images_altered_in_memory", "step", ""),
        Fault("half_of_the_images_twice", "run", "each image once"),
    ),
)
def test_faults_that_a_whole_verification_shows(bench: Bench, fault: Fault) -> None:
    found = bench.verify(bench.overlay.after("jax", fault.name), profile="jax-cpu")
    found.require_failed(fault.check, fault.words)


@pytest.mark.parametrize(
    ("variable", "count"),
    [("PJRT_NPROC", 3), pytest.param("OMP_NUM_THREADS", 1, marks=pytest.mark.soak)],
)
def test_the_threads_are_those_that_the_report_states(
    bench: Bench, pyz: Path, variable: str, count: int
) -> None:
    """XLA names the threads of its pool; there is no other way to see their number."""
    script = (
        "import os, pathlib; from payload import frameworks;"
        f"os.environ['{variable}'] = '{count}';"
        "framework = frameworks.load('jax', 'cpu', None); framework.require_usable();"
        "names = [p.read_text().strip() for p in pathlib.Path('/proc/self/task').glob('*/comm')];"
        "print(framework.threads()['framework'], names.count('tf_XLAEigen'))"
    )
    environment = {k: v for k, v in bench.environment.items() if k != "OMP_NUM_THREADS"}
    python = bench.overlay.python
    done = bench.run(python, "-c", script, env={**environment, "PYTHONPATH": str(pyz)})
    assert done.stdout.split() == [str(count)] * 2, done.stderr


FOREIGN = """
import pathlib
pathlib.Path({canary!r}).touch()
raise ImportError("this module is not the environment's")
"""


@pytest.mark.soak
def test_modules_from_outside_have_no_effect(bench: Bench) -> None:
    outside = bench.folder / "outside"
    canary = bench.folder / "canary"
    for name in ("jax", "jaxlib", "numpy"):
        (outside / name).mkdir(parents=True)
        (outside / name / "__init__.py").write_text(FOREIGN.format(canary=str(canary)))
    theirs = bench.environment.get("PYTHONPATH", "")
    bench.environment["PYTHONPATH"] = f"{outside}{os.pathsep}{theirs}".rstrip(os.pathsep)
    found = bench.verify(bench.overlay, profile="jax-cpu")
    assert (found.code, found.report["reasons"]) == (0, [])
    assert not canary.exists()
    assert found.report["origins"]["framework"].startswith(str(bench.folder / "overlay"))
