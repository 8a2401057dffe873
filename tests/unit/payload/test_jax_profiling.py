from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from envbuilder.payload.frameworks import jax_profiling

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    names = jax_profiling.instructions(EXECUTABLE)
    assert names["ynn_fusion"] == "ynn_fusion (convolution)"
    assert names["loop_fusion"] == "loop_fusion"
    assert names["dot.3"] == "dot.3"
    assert "FileNames" not in names


def test_the_types_are_those_of_all_instructions() -> None:
    assert jax_profiling.float_types(EXECUTABLE) == {"float32"}
    lowered = EXECUTABLE.replace("= f32[64,24]{1,0} convolution", "= bf16[64,24]{1,0} convolution")
    assert jax_profiling.float_types(lowered) == {"float32", "bfloat16"}
    assert jax_profiling.float_types("  %a = f8e4m3fn[4] parameter(0)") == {"f8e4m3fn"}


def plane(name: str, line: str, *events: tuple[str, float]) -> Any:
    recorded = [SimpleNamespace(name=event, duration_ns=time) for event, time in events]
    return SimpleNamespace(name=name, lines=[SimpleNamespace(name=line, events=recorded)])


def seen(*planes: Any) -> list[tuple[str, float, bool]]:
    """The kernels of a profiler that writes these planes."""

    @contextmanager
    def trace(folder: str) -> Iterator[None]:
        yield
        file = Path(folder) / "plugins" / "profile" / "now" / "host.xplane.pb"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")

    data = SimpleNamespace(from_file=lambda file: SimpleNamespace(planes=planes))
    jax = SimpleNamespace(profiler=SimpleNamespace(trace=trace, ProfileData=data))
    observation = jax_profiling.observe(jax, EXECUTABLE, lambda: None)
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


def test_a_profiler_that_writes_nothing_has_seen_nothing() -> None:
    assert seen() == []
