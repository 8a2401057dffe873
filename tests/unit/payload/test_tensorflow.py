"""What is decided about TensorFlow, from what it states of itself; without it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from envbuilder.payload.frameworks import tensorflow_, tensorflow_job
from envbuilder.payload.frameworks.tensorflow_ import TensorFlow
from envbuilder.payload.interface import Kernel, Observation
from envbuilder.payload.numerics import precision
from envbuilder.payload.report import CheckError

CPU = {"is_cuda_build": False, "is_rocm_build": False}
CUDA = {"is_cuda_build": True, "is_rocm_build": False, "cuda_version": "12.5.1"}
ROCM = {"is_cuda_build": False, "is_rocm_build": True, "rocm_version": "6.2.0"}


def tensorflow(build: dict[str, Any], *gpus: str, **config: Any) -> Any:
    """What a TensorFlow of this build says, with these GPUs."""
    listed = {"CPU": ["CPU:0"], "GPU": list(gpus)}
    return SimpleNamespace(
        __version__="2.21.0",
        __file__="/env/site-packages/tensorflow/__init__.py",
        sysconfig=SimpleNamespace(get_build_info=lambda: build),
        config=SimpleNamespace(list_physical_devices=listed.get, **config),
    )


@pytest.mark.parametrize(
    ("build", "name", "runtime"),
    [(CPU, "cpu", None), (CUDA, "cu125", "12.5.1"), (ROCM, "rocm6.2", "6.2.0")],
)
def test_a_build_is_named_by_what_it_was_built_with(
    build: dict[str, Any], name: str, runtime: str | None
) -> None:
    assert TensorFlow(tensorflow(build), "cpu").facts() == {
        "version": "2.21.0",
        "build": name,
        "runtime": runtime,
    }


@pytest.mark.parametrize(
    ("build", "accelerator"),
    [(CPU, "cpu"), (CUDA, "cpu"), (CUDA, "cuda"), (ROCM, "rocm")],
)
def test_a_build_drives_its_accelerator_and_the_cpu(
    build: dict[str, Any], accelerator: str
) -> None:
    sentence = TensorFlow(tensorflow(build), accelerator).require_build()
    assert sentence.endswith(f"which can drive {accelerator}")


@pytest.mark.parametrize(
    ("build", "accelerator", "words"),
    [
        (
            CPU,
            "cuda",
            "is a cpu build and cannot use cuda; install tensorflow[and-cuda], or verify",
        ),
        (ROCM, "cuda", "is a rocm6.2 build and cannot use cuda"),
        (CUDA, "rocm", "is a cu125 build and cannot use rocm"),
        (CPU, "cuda", "with --device cpu"),
        (CUDA, "rocm", "with --device cuda"),
        (CPU, "mps", "no maintained build of TensorFlow drives mps"),
        (CUDA, "xpu", "no maintained build of TensorFlow drives xpu"),
    ],
)
def test_a_build_that_cannot_drive_it_is_refused(
    build: dict[str, Any], accelerator: str, words: str
) -> None:
    with pytest.raises(CheckError) as error:
        TensorFlow(tensorflow(build), accelerator).require_build()
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("driver", "environment", "words"),
    [
        (None, {}, "no kernel driver is loaded"),
        ("580.1", {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= chooses the devices"),
        ("580.1", {}, "the environment has no cuDNN"),
    ],
)
def test_a_gpu_that_is_not_listed_is_explained(
    driver: str | None,
    environment: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = tensorflow_.Row("GPU", "is_cuda_build", "x", lambda: driver)
    monkeypatch.setitem(tensorflow_.ROWS, "cuda", row)
    for name in ("CUDA_VISIBLE_DEVICES",):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CheckError) as error:
        TensorFlow(tensorflow(CUDA), "cuda").require_usable()
    assert str(error.value).startswith("no cuda device can be used: ")
    assert words in str(error.value)


def settings(tf32: bool, rewriters: dict[str, bool], accelerator: str = "cpu") -> dict[str, Any]:
    experimental = SimpleNamespace(tensor_float_32_execution_enabled=lambda: tf32)
    optimizer = SimpleNamespace(get_experimental_options=lambda: rewriters)
    return TensorFlow(
        tensorflow(CUDA, experimental=experimental, optimizer=optimizer), accelerator
    ).precision()


@pytest.mark.parametrize(
    ("tf32", "rewriters", "effective"),
    [
        (False, {}, "float32"),
        (False, {"auto_mixed_precision": False, "layout_optimizer": True}, "float32"),
        (True, {}, "tf32"),
        (False, {"auto_mixed_precision": True}, "autocast"),
        (False, {"auto_mixed_precision_onednn_bfloat16": True}, "autocast"),
    ],
)
@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_what_lowers_the_precision_is_seen(
    tf32: bool, rewriters: dict[str, bool], effective: str, accelerator: str
) -> None:
    assert precision.effective(settings(tf32, rewriters, accelerator)) == effective


def test_a_variable_of_onednn_lowers_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_SET_ONEDNN_FPMATH_MODE", "BF16")
    assert precision.effective(settings(False, {})) == "bfloat16"


def plane(name: str, *events: tuple[str, str, float]) -> Any:
    """One plane with a line of events: name, second name and microseconds."""
    named = {n: SimpleNamespace(name=e[0], display_name=e[1]) for n, e in enumerate(events)}
    spent = [SimpleNamespace(metadata_id=n, duration_ps=e[2] * 1e6) for n, e in enumerate(events)]
    return SimpleNamespace(name=name, event_metadata=named, lines=[SimpleNamespace(events=spent)])


def test_kernels_are_the_operations_of_the_host_and_all_that_a_gpu_ran() -> None:
    space = SimpleNamespace(
        planes=[
            plane(
                "/host:CPU",
                ("conv:Conv2D", "_MklNativeConv2D", 5),
                ("grad:Conv2D", "_MklNativeConv2D", 7),
                ("ThreadpoolListener::Record", "", 9),
            ),
            plane("/device:GPU:0", ("ampere_sgemm_128x64_nn", "", 3)),
            plane("Task Environment"),
        ]
    )
    assert Observation.of(tensorflow_.events(space)).kernels == (
        Kernel("_MklNativeConv2D", 12.0, False),
        Kernel("ampere_sgemm_128x64_nn", 3.0, True),
    )


def test_a_tensor_is_where_its_memory_is_and_a_variable_where_it_says() -> None:
    # An operation that ran for a GPU, and left its result in the memory of the CPU.
    result: Any = SimpleNamespace(device="/device:GPU:0", backing_device="/device:CPU:0")
    assert tensorflow_job.place_of(result) == "/device:CPU:0"
    assert tensorflow_job.place_of(SimpleNamespace(device="/device:GPU:0")) == "/device:GPU:0"


class Tensor:
    """A tensor on a GPU that computes with numpy."""

    def __init__(self, numbers: Any, error: float = 0) -> None:
        self.numbers = numbers
        self.error = error

    def __mul__(self, factor: int) -> Tensor:
        return Tensor(self.numbers * factor, self.error)

    def __add__(self, number: int) -> Tensor:
        return Tensor(self.numbers + number, self.error)

    def numpy(self) -> Any:
        return self.numbers + numpy.float32(self.error)


@pytest.mark.parametrize("error", [0, 1])
def test_a_gpu_is_usable_if_it_computes_exactly(error: int) -> None:
    details = {"device_name": "H100", "compute_capability": (9, 0)}
    experimental = SimpleNamespace(get_device_details=lambda device: details)
    framework = tensorflow(CUDA | {"cudnn_version": "9"}, "GPU:0", experimental=experimental)
    framework.device = lambda place: nullcontext()
    framework.constant = lambda numbers: Tensor(numbers, error)
    framework.errors = SimpleNamespace(OpError=OSError)
    assert TensorFlow(framework, "cuda").describe()["capability"] == "sm_90"
    if error:
        with pytest.raises(CheckError, match="returned wrong numbers"):
            TensorFlow(framework, "cuda").require_usable()
    else:
        sentence = TensorFlow(framework, "cuda").require_usable()
        assert sentence.startswith("H100: allocated, computed and read back; built with CUDA 12.5")
