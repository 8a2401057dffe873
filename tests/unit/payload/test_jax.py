from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from envbuilder.payload import frameworks
from envbuilder.payload.frameworks import jax_
from envbuilder.payload.report import CheckError


class Config:
    """jax.config."""

    def __init__(self) -> None:
        self.jax_default_matmul_precision: str | None = None

    def update(self, name: str, value: Any) -> None:
        setattr(self, name, value)


def device(platform: str = "cpu", **more: Any) -> Any:
    client = SimpleNamespace(platform_version="PJRT C API\ncuda 13000")
    return SimpleNamespace(platform=platform, client=client, device_kind="H100", **more)


class Module:
    """As much of JAX as a device needs, computed by numpy."""

    __version__ = "0.12.0.1"

    def __init__(self, *devices: Any) -> None:
        self.config = Config()
        self.numpy = numpy
        self.asked = [""]
        self.value_and_grad = lambda function, **options: function
        self.lax = SimpleNamespace(dynamic_slice_in_dim=None)
        self.tree = SimpleNamespace(map=lambda function, value: function(value))
        self._devices = list(devices)

    def jit(self, function: Any, **options: Any) -> Any:
        return function

    def devices(self, name: str) -> list[Any]:
        self.asked.append(name)
        if not self._devices:
            raise RuntimeError("Unknown backend\nmore")
        return self._devices

    def device_put(self, value: Any, place: Any) -> Any:
        return value


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAX_PLATFORMS", "PJRT_NPROC", "NPROC", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")


def load(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, threads: int | None = None, *devices: Any
) -> Any:
    modules = {"jax": Module(*devices), "numpy": numpy}
    monkeypatch.setattr(jax_, "limited", modules.__getitem__)
    return frameworks.load("jax", accelerator, threads)


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    names = {name.replace("_", "-"): version for name, version in versions.items()}

    def version(name: str) -> str:
        if name not in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return names[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("accelerator", "platforms"), [("cpu", "cpu"), ("cuda", "cuda,cpu"), ("xpu", "oneapi,cpu")]
)
def test_jax_may_use_the_accelerator_and_the_cpu_only(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, platforms: str
) -> None:
    load(monkeypatch, accelerator)
    assert os.environ["JAX_PLATFORMS"] == platforms


@pytest.mark.parametrize(
    ("environment", "decided", "threads"),
    [
        ({}, 3, 3),
        ({"OMP_NUM_THREADS": "5,2"}, None, 5),
        ({"NPROC": "2", "PJRT_NPROC": "4"}, 3, 4),
    ],
)
def test_the_users_threads_come_before_those_decided(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    decided: int | None,
    threads: int,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    framework = load(monkeypatch, "cpu", decided)
    assert framework.threads() == {"framework": threads, "interop": None}


def test_the_plugin_names_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = load(monkeypatch, "cuda")
    installed(monkeypatch)
    assert framework.facts() == {"version": "0.12.0.1", "build": "cpu", "runtime": None}
    with pytest.raises(CheckError, match=r"without a plugin for cuda; install jax\[cuda13\]"):
        framework.require_build()
    installed(monkeypatch, jax_cuda13_plugin="0.12.0.1", nvidia_cuda_runtime="13.0.96")
    assert framework.facts() == {"version": "0.12.0.1", "build": "cu13", "runtime": "13.0.96"}
    assert framework.require_build() == "jax 0.12.0.1 is a cu13 build, which can drive cuda"


@pytest.mark.parametrize(
    ("stated", "accelerator", "hidden"),
    [
        ("cpu", "cuda", True),
        ("cuda", "cpu", True),
        ("gpu", "cuda", False),
        ("", "cuda", False),
    ],
)
def test_a_setting_that_hides_the_device_is_named(
    monkeypatch: pytest.MonkeyPatch, stated: str, accelerator: str, hidden: bool
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", stated)
    framework = load(
        monkeypatch, accelerator, None, device("cpu" if accelerator == "cpu" else "gpu")
    )
    if hidden:
        with pytest.raises(CheckError, match=f"JAX_PLATFORMS={stated} hides {accelerator}"):
            framework.require_usable()
    else:
        assert framework.require_usable().endswith("client PJRT C API cuda 13000")


@pytest.mark.parametrize("platform", ["gpu", "cuda"])
def test_a_gpu_has_one_type_whatever_the_version_calls_it(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    framework = load(monkeypatch, "cuda", None, device(platform, compute_capability="9.0"))
    framework.require_usable()
    assert framework.jax.asked[-1] == "cuda"
    assert framework.device_type() == "gpu"
    described = framework.describe()
    assert (described["name"], described["capability"]) == ("H100", "sm_90")


def test_a_cpu_in_place_of_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckError, match="JAX gives cpu as a device of cuda"):
        load(monkeypatch, "cuda", None, device("cpu")).require_usable()


def test_without_a_device_jaxs_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckError, match=r"no cuda device can be used: Unknown backend$"):
        load(monkeypatch, "cuda").require_usable()


def test_wrong_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = load(monkeypatch, "cpu", None, device())
    framework.jax.jit = lambda function: lambda values: function(values) * 1.001
    with pytest.raises(CheckError, match="returned wrong numbers"):
        framework.require_usable()


@pytest.mark.parametrize(
    ("accelerator", "setting", "matmul", "tf32"),
    [
        ("cpu", None, "highest", False),
        ("cuda", None, "high", True),
        ("cuda", "highest", "highest", False),
        ("cpu", "bfloat16", "medium", False),
    ],
)
def test_the_precision_of_products(
    monkeypatch: pytest.MonkeyPatch,
    accelerator: str,
    setting: str | None,
    matmul: str,
    tf32: bool,
) -> None:
    framework = load(monkeypatch, accelerator)
    framework.jax.config.jax_default_matmul_precision = setting
    framework.jax.numpy = SimpleNamespace(zeros=lambda shape: numpy.zeros(shape, "float32"))
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    observed = framework.precision()
    assert (observed["dtype"], observed["matmul"]) == ("float32", matmul)
    assert (observed["cuda_tf32"], observed["autocast"]) == (tf32, False)
    assert observed["environment"]["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize(
    ("stated", "setting", "result"),
    [("float32", None, "highest"), ("float32", "bfloat16", "bfloat16"), ("tf32", None, None)],
)
def test_only_jaxs_own_default_is_undone(
    monkeypatch: pytest.MonkeyPatch, stated: str, setting: str | None, result: str | None
) -> None:
    framework = load(monkeypatch, "cuda")
    framework.jax.config.jax_default_matmul_precision = setting
    framework.state_precision(stated)
    assert framework.jax.config.jax_default_matmul_precision == result


# ---- what ran

EXECUTABLE = """\
HloModule jit__step, is_scheduled=true, num_partitions=1

FileNames
1 "/tmp/step.py"

%fused_computation (param_0: f32[64,26], param_1: f32[26,24]) -> f32[64,24] {
  %param_0 = f32[64,26]{1,0} parameter(0)
  %param_1 = f32[26,24]{1,0} parameter(1)
  ROOT %convolution.2 = f32[64,24]{1,0} convolution(%param_0, %param_1), window={size=3x3}
}

%fused_computation.1 (param_0.2: f32[64,24]) -> (f32[64,24], f32[]) {
  %param_0.2 = f32[64,24]{1,0} parameter(0)
  ROOT %tuple.1 = (f32[64,24]{1,0}, /*index=1*/f32[]) tuple(%param_0.2)
}

ENTRY %main.5 (images.1: f32[64,26], weight.1: f32[26,24]) -> f32[64,24] {
  %images.1 = f32[64,26]{1,0} parameter(0), metadata={op_name="images"}
  %ynn_fusion = f32[64,24]{1,0} fusion(%images.1), kind=kCustom, calls=%fused_computation
  %loop_fusion = (f32[64,24]{1,0}, f32[]) fusion(%ynn_fusion), calls=%fused_computation.1
  ROOT %dot.3 = f32[64,24]{1,0} dot(%ynn_fusion), lhs_contracting_dims={1}
}
"""


def test_merged_convolutions_are_named() -> None:
    names = jax_.instructions(EXECUTABLE)
    assert names["ynn_fusion"] == "ynn_fusion (convolution)"
    assert names["loop_fusion"] == "loop_fusion"
    assert names["dot.3"] == "dot.3"
    assert "FileNames" not in names


def test_the_types_are_those_of_all_instructions() -> None:
    assert jax_.float_types(EXECUTABLE) == {"float32"}
    lowered = EXECUTABLE.replace("= f32[64,24]{1,0} convolution", "= bf16[64,24]{1,0} convolution")
    assert jax_.float_types(lowered) == {"float32", "bfloat16"}
    assert jax_.float_types("  %a = f8e4m3fn[4] parameter(0)") == {"f8e4m3fn"}


def plane(name: str, line: str, *events: tuple[str, float]) -> Any:
    recorded = [SimpleNamespace(name=event, duration_ns=time) for event, time in events]
    return SimpleNamespace(name=name, lines=[SimpleNamespace(name=line, events=recorded)])


def seen(*planes: Any) -> list[tuple[str, float, bool]]:
    """The kernels of a profiler that writes these planes."""

    @contextmanager
    def trace(folder: str) -> Iterator[None]:
        yield
        file = Path(folder) / "plugins/profile/now/host.xplane.pb"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")

    data = SimpleNamespace(from_file=lambda file: SimpleNamespace(planes=planes))
    jax = SimpleNamespace(profiler=SimpleNamespace(trace=trace, ProfileData=data))
    observation = jax_.profile(jax, EXECUTABLE, lambda: None)
    return [(kernel.name, kernel.microseconds, kernel.on_device) for kernel in observation.kernels]


def test_instructions_of_the_executable_count_on_the_cpu_and_nothing_else() -> None:
    events = (("ynn_fusion", 3000.0), ("PjitFunction(step)", 9.0), ("ynn_fusion", 1000.0))
    assert seen(
        plane("/host:CPU", "tf_XLAEigen/1", *events, ("convolution.of.another", 5.0)),
        plane("/host:metadata", "", ("dot.3", 7.0)),
    ) == [("ynn_fusion (convolution)", 4.0, False)]


def test_every_kernel_of_a_devices_streams_counts() -> None:
    kernels = (("sm90_xmma_fprop", 2000.0), ("loop_fusion", 1000.0))
    assert seen(
        plane("/device:GPU:0", "Stream #13(Compute)", *kernels),
        plane("/device:GPU:0", "XLA Modules", ("jit__step", 9999.0)),
    ) == [("sm90_xmma_fprop", 2.0, True), ("loop_fusion", 1.0, True)]


def test_a_release_that_cannot_read_its_profile_still_trains() -> None:
    done: list[int] = []
    jax = SimpleNamespace(__version__="0.4.35", profiler=SimpleNamespace())
    seen = jax_.profile(jax, "", lambda: done.append(1))
    assert (seen.kernels, done) == ((), [1])
    assert seen.unjudged == "jax 0.4.35 cannot read what its profiler records"


def test_memory_is_counted_where_jax_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"bytes_in_use": 7, "peak_bytes_in_use": 9, "bytes_limit": 100}
    framework = load(monkeypatch, "cuda", None, device("gpu", memory_stats=lambda: counters))
    assert framework.allocated() == 7
    assert framework.peak() == 9
    framework = load(monkeypatch, "cpu", None, device(memory_stats=lambda: None))
    assert framework.allocated() is None
    assert framework.peak() > 1 << 20
