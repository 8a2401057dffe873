"""Correctness of arithmetic: small computations on the device, compared with float64, by dtype.

All errors are relative and norm-wise: the norm of the difference divided by the norm of the
reference. Both sides start from equal numbers, rounded to the device's dtype. Results and gradients
are compared. In float32, every case must run. Half precision is checked if the device supports it,
and unsupported cases are listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Tuple

from ..machine.accelerators import device_of

SEED = 1
SCALE = 0.25
"""Scale of the random numbers; it keeps every sum of every case within float16's range."""

TOLERANCE = {"float32": 5e-5, "tf32": 3e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""float32 with any algorithm (Winograd included) stays near 1e-6, and TF32 cannot reach 1e-4.
Results and gradients of half types differed by at most 5e-3 (bfloat16) and 7e-4 (float16) with
torch 2.13.0 on the CPU; the rest is for devices that accumulate in half precision. A wrong result
differs by 0.1 to 1."""

HALVES = ("bfloat16", "float16")

LACKING = (
    "not implemented",
    "not supported",
    "unsupported",
    "arch mismatch",
    "no kernel image",
)
"""Phrases, in lower case, with which torch reports that a device lacks an operator."""

MANY_CHANNELS = (1 << 16) + 1


@dataclass
class Errors:
    """The largest error of each case in one dtype, and the cases that are not supported."""

    dtype: str
    tolerance: float
    by_case: Dict[str, float] = field(default_factory=dict)
    lacking: List[str] = field(default_factory=list)

    def wrong(self) -> List[str]:
        """Return a phrase for each case whose error exceeds the tolerance."""
        return [
            f"{self.dtype} {name} (relative error {error:.1e})"
            for name, error in self.by_case.items()
            if not error <= self.tolerance
        ]

    def phrase(self) -> str:
        """Return a short summary of the cases that ran and of those that are not supported."""
        if not self.by_case:
            return f"no {self.dtype} on this device"
        text = (
            f"{self.dtype} {len(self.by_case)} cases, largest relative error "
            f"{max(self.by_case.values()):.1e} (tolerance {self.tolerance:.0e})"
        )
        lacking = f", not offered: {', '.join(self.lacking)}" if self.lacking else ""
        return text + lacking


@dataclass(frozen=True)
class Case:
    """A computation and the shapes of its inputs. ``compute`` receives torch and the inputs."""

    shapes: Tuple[Tuple[int, ...], ...]
    compute: Callable[..., Any]
    differentiated: bool = True
    """Whether gradients of the inputs are compared, too."""


def errors(torch: Any, accelerator: str, dtype: str, stated: str) -> Errors:
    """Run each case in ``dtype`` and return the errors.

    The tolerance for float32 is that of ``stated``, the requested precision.
    """
    result = Errors(dtype, TOLERANCE[stated if dtype == "float32" else dtype])
    for name, case in CASES.items():
        try:
            result.by_case[name] = _case_error(torch, accelerator, dtype, case)
        except Exception as error:
            text = str(error).lower().replace("_", " ")
            if dtype not in HALVES or not any(words in text for words in LACKING):
                raise
            result.lacking.append(name)
    return result


def _case_error(torch: Any, accelerator: str, dtype: str, case: Case) -> float:
    ours = _run(torch, case, device_of(accelerator), dtype, dtype)
    exact = _run(torch, case, "cpu", dtype, "float64")
    return max(relative_error(ours[number], exact[number]) for number in range(len(exact)))


def _run(torch: Any, case: Case, place: str, rounded: str, dtype: str) -> List[Any]:
    """Return the result of a case, followed by the gradients of its inputs if it has any."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = []
    for shape in case.shapes:
        values = torch.randn(*shape, generator=generator, dtype=torch.float32) * SCALE
        values = values.to(getattr(torch, rounded)).to(place, getattr(torch, dtype))
        inputs.append(values.requires_grad_(case.differentiated))
    result = case.compute(torch, *inputs)
    if not case.differentiated:
        return [result]
    # With the result as its own cotangent, the gradients depend on each of its elements.
    return [result, *torch.autograd.grad(result, inputs, result.detach())]


def relative_error(ours: Any, exact: Any) -> float:
    """Return the norm of the difference divided by the norm of ``exact``.

    Return infinity if the quotient is not finite.
    """
    difference = (ours.detach().to("cpu").double() - exact.detach()).norm()
    return or_infinite(float(difference / exact.detach().norm()))


def or_infinite(error: float) -> float:
    """Return the error, or infinity if it is not finite.

    NaN would otherwise pass comparisons unnoticed.
    """
    return error if math.isfinite(error) else math.inf


def _matmul_chunks(torch: Any, whole: Any) -> Any:
    first, second, third = whole.chunk(3, dim=1)
    return second @ third.t() @ first


def _elementwise(torch: Any, whole: Any) -> Any:
    first, second, third = whole.chunk(3, dim=1)
    return first * second + torch.tanh(third)


def _in_place(torch: Any, target: Any, left: Any, right: Any) -> Any:
    target.t().mul_(0.9).addcmul_(left, right, value=0.5).addcdiv_(left, right.abs() + 1, value=0.5)
    return target


def _random(torch: Any, values: Any) -> Any:
    """Return the values, with NaN where the device draws a random number that is not finite."""
    # Eight million where the fault was seen; on a CPU that takes half a second.
    count = 16 if values.device.type == "cpu" else 2048
    return values + 0 * torch.randn_like(values.expand(count, len(values))).sum(dim=0)


def _dropout(torch: Any, values: Any) -> Any:
    """Return the values, or NaN if dropout drops too large or too small a share of numbers.

    The limit is a difference of 10 standard deviations.
    """
    kept = torch.nn.functional.dropout(torch.ones_like(values.expand(16, len(values))), 0.5) != 0
    return values if abs(float(kept.float().mean()) - 0.5) < 0.02 else values * math.nan


def _convolution(
    *shapes: Tuple[int, ...],
    images: Callable[..., Any] = lambda torch, array: array,
    weight: Callable[..., Any] = lambda torch, array: array,
    **options: int,
) -> Case:
    """Return a case that convolves images with a weight.

    The functions ``images`` and ``weight`` first transform the two inputs.
    """

    def compute(torch: Any, first: Any, second: Any) -> Any:
        arrays = images(torch, first), weight(torch, second)
        return torch.nn.functional.conv2d(*arrays, **options)

    return Case(shapes, compute)


CASES: Dict[str, Case] = {
    "matmul": Case(((257, 129), (129, 65)), lambda torch, left, right: left @ right),
    # Wrong in half precision: torch-xpu-ops#5220.
    "linear": Case(
        ((64, 129), (10, 129), (10,)),
        lambda torch, *arrays: torch.nn.functional.linear(*arrays),
    ),
    # Views from chunk: pytorch#169342.
    "matmul of chunks": Case(((64, 96),), _matmul_chunks),
    # Views from chunk: pytorch#169342.
    "elementwise on chunks": Case(((33, 96),), _elementwise),
    # In-place updates as in optimizers, of a non-contiguous view: pytorch#118115.
    "in place into a strided view": Case(
        ((33, 65), (65, 33), (65, 33)), _in_place, differentiated=False
    ),
    # Wrong in bfloat16: pytorch#163347.
    "conv2d of one channel": _convolution((8, 1, 28, 28), (32, 1, 3, 3)),
    # A channel slice of a channels_last tensor: pytorch#180984.
    "conv2d of a channel slice": _convolution(
        (8, 20, 20, 20),
        (24, 16, 3, 3),
        images=lambda torch, array: array.contiguous(memory_format=torch.channels_last)[:, 2:18],
    ),
    # A non-contiguous weight: pytorch#192212.
    "conv2d with a strided weight": _convolution(
        (8, 16, 20, 20),
        (16, 24, 3, 3),
        weight=lambda torch, array: array.transpose(0, 1),
        stride=2,
        padding=1,
    ),
    # Views from chunk: pytorch#169342.
    "conv2d of a chunk": _convolution(
        (8, 32, 12, 12), (24, 16, 3, 3), images=lambda torch, array: array.chunk(2, dim=1)[1]
    ),
    # Groups, with more than one image: pytorch#188335.
    "conv2d in groups": _convolution((8, 16, 20, 20), (24, 4, 3, 3), groups=4),
    # More than 65,536 channels: pytorch#129207.
    "conv2d of 65,537 channels": _convolution((1, MANY_CHANNELS, 1, 2), (2, MANY_CHANNELS, 1, 1)),
    # pytorch#197114.
    "conv3d": Case(
        ((2, 4, 8, 8, 8), (6, 4, 3, 3, 3)),
        lambda torch, images, weight: torch.nn.functional.conv3d(images, weight),
    ),
    "sum of a strided view": Case(
        ((129, 257),), lambda torch, values: values.t()[3:, ::2].sum(dim=0)
    ),
    # One NaN in eight million normal numbers on MPS: pytorch#89283.
    "random numbers": Case(((4096,),), _random, differentiated=False),
    # In training, torch's own is used on devices other than the CPU alone.
    "dropout": Case(((4096,),), _dropout, differentiated=False),
}
"""Computations that no repeated step shows: on awkwardly strided tensors and in half precision.

A case that names an issue reproduces the fault reported there: wrong numbers without an error, most
of them on MPS.
"""
