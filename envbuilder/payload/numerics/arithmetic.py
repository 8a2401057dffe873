"""Correctness of the arithmetic: small computations on the device against float64, by dtype.

All errors are relative and norm-wise: the norm of the difference over the norm of the reference.
Both sides start from equal numbers, rounded to the device's dtype, and gradients are compared, too.
In float32 each case must run; half precision is checked if the device supports it, and unsupported
cases are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

from ..interface import Errors
from ..machine.accelerators import device_of
from . import reference

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

OVERFLOWING = {
    "mean of 100,003 numbers": "torch before 2.1 sums them in float16 on the CPU, and overflows"
}
"""Cases that old releases get wrong in float16, each with the reason."""

MANY_CHANNELS = (1 << 16) + 1
LONG = 100_003


@dataclass(frozen=True)
class Case:
    """A computation, and the shapes of its inputs; ``compute`` receives torch and the inputs."""

    shapes: Tuple[Tuple[int, ...], ...]
    compute: Callable[..., Any]
    differentiated: bool = True
    """Whether gradients of the inputs are compared, too."""


def errors(torch: Any, accelerator: str, dtype: str, stated: str) -> Errors:
    """Run each case in ``dtype``, except those that this release computes wrongly.

    The tolerance for float32 is that of the stated precision.
    """
    half_on_cpu = accelerator == "cpu" and dtype == "float16"
    unjudged = OVERFLOWING if half_on_cpu and _release(torch) < (2, 1) else {}
    tolerance = TOLERANCE[stated if dtype == "float32" else dtype]
    result = Errors(dtype, tolerance, unjudged=unjudged)
    for name, case in CASES.items():
        if name in unjudged:
            continue
        try:
            result.by_case[name] = _case_error(torch, accelerator, dtype, case)
        except Exception as error:
            text = str(error).lower().replace("_", " ")
            if dtype not in HALVES or not any(words in text for words in LACKING):
                raise
            result.lacking.append(name)
    return result


def _release(torch: Any) -> Tuple[int, ...]:
    return tuple(map(int, str(torch.__version__).split(".")[:2]))


def _case_error(torch: Any, accelerator: str, dtype: str, case: Case) -> float:
    ours = _run(torch, case, device_of(accelerator), dtype, dtype)
    exact = _run(torch, case, "cpu", dtype, "float64")
    return max(relative_error(ours[number], exact[number]) for number in range(len(exact)))


def _run(torch: Any, case: Case, place: str, rounded: str, dtype: str) -> List[Any]:
    """Return the result of a case and the gradients of its inputs."""
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
    """Return the difference's norm over that of ``exact``; infinite if anything is not finite."""
    difference = (ours.detach().to("cpu").double() - exact.detach()).norm()
    return reference.or_infinite(float(difference / exact.detach().norm()))


def _matmul_chunks(torch: Any, whole: Any) -> Any:
    first, second, third = whole.chunk(3, dim=1)
    return second @ third.t() @ first


def _elementwise(torch: Any, whole: Any) -> Any:
    first, second, third = whole.chunk(3, dim=1)
    return first * second + torch.tanh(third)


def _in_place(torch: Any, target: Any, left: Any, right: Any) -> Any:
    target.t().mul_(0.9).addcmul_(left, right, value=0.5).addcdiv_(left, right.abs() + 1, value=0.5)
    return target


def _loss(torch: Any, logits: Any) -> Any:
    labels = torch.arange(64, device=logits.device) % 10
    log_probabilities = torch.nn.functional.log_softmax(logits.t(), dim=1)
    return torch.nn.functional.nll_loss(log_probabilities, labels).reshape(1)


def _random(torch: Any, values: Any) -> Any:
    """Return the values; NaN where a drawn number is not finite."""
    return values + 0 * torch.randn_like(values.expand(2048, len(values))).sum(dim=0)


def _channels_last(torch: Any, array: Any) -> Any:
    return array.contiguous(memory_format=torch.channels_last)


def _convolution(
    *shapes: Tuple[int, ...],
    images: Callable[..., Any] = lambda torch, array: array,
    weight: Callable[..., Any] = lambda torch, array: array,
    **options: int,
) -> Case:
    """Return a convolution of what two functions make of images and weight."""

    def compute(torch: Any, first: Any, second: Any, *bias: Any) -> Any:
        arrays = images(torch, first), weight(torch, second), *bias
        return torch.nn.functional.conv2d(*arrays, **options)

    return Case(shapes, compute)


CASES: Dict[str, Case] = {
    "matmul": Case(((257, 129), (129, 65)), lambda torch, left, right: left @ right),
    "matmul of strided views": Case(
        ((129, 257), (258, 65)), lambda torch, left, right: left.t()[1:, :] @ right[::2, :]
    ),
    # Views from chunk: pytorch#169342.
    "matmul of chunks": Case(((64, 96),), _matmul_chunks),
    "matmul of an expanded batch": Case(
        ((1, 33, 65), (7, 65, 17)), lambda torch, left, right: left.expand(7, 33, 65) @ right
    ),
    "linear of a slice": Case(
        ((64, 134), (10, 129), (10,)),
        lambda torch, values, *rest: torch.nn.functional.linear(values[:, 5:], *rest),
    ),
    # Views from chunk: pytorch#169342.
    "elementwise on chunks": Case(((33, 96),), _elementwise),
    # In-place updates as in optimizers, of a non-contiguous view: pytorch#118115.
    "in place into a strided view": Case(
        ((33, 65), (65, 33), (65, 33)), _in_place, differentiated=False
    ),
    "conv2d": _convolution((8, 16, 20, 20), (24, 16, 3, 3), (24,)),
    "conv2d of one channel": _convolution((8, 1, 28, 28), (32, 1, 3, 3)),
    "conv2d channels_last": _convolution(
        (8, 16, 20, 20), (24, 16, 3, 3), images=_channels_last, weight=_channels_last
    ),
    # A channel slice of a channels_last tensor: pytorch#180984.
    "conv2d of a channel slice": _convolution(
        (8, 20, 20, 20),
        (24, 16, 3, 3),
        images=lambda torch, array: _channels_last(torch, array)[:, 2:18],
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
    "conv2d of an expanded image": _convolution(
        (1, 16, 12, 12),
        (24, 16, 3, 3),
        images=lambda torch, array: array.expand(8, 16, 12, 12),
        dilation=2,
    ),
    # More than 65,536 channels: pytorch#129207.
    "conv2d of 65,537 channels": _convolution((1, MANY_CHANNELS, 1, 2), (2, MANY_CHANNELS, 1, 1)),
    # pytorch#197114.
    "conv3d": Case(
        ((2, 4, 8, 8, 8), (6, 4, 3, 3, 3)),
        lambda torch, images, weight: torch.nn.functional.conv3d(images, weight),
    ),
    # If two of a window are equal, the gradient may go to either.
    "max_pool2d channels_last": Case(
        ((8, 16, 20, 20),),
        lambda torch, images: torch.nn.functional.max_pool2d(_channels_last(torch, images), 2),
        differentiated=False,
    ),
    "sum of rows": Case(((129, 257),), lambda torch, values: values.sum(dim=0)),
    "sum of columns": Case(((129, 257),), lambda torch, values: values.sum(dim=1)),
    "sum of a strided view": Case(
        ((129, 257),), lambda torch, values: values.t()[3:, ::2].sum(dim=0)
    ),
    "sum of an expanded tensor": Case(
        ((129, 1),), lambda torch, values: values.expand(129, 65).sum(dim=0)
    ),
    # Long enough that accumulation in half precision would stall.
    "mean of 100,003 numbers": Case(
        ((LONG,),), lambda torch, values: (values + 1).mean().reshape(1), differentiated=False
    ),
    "variance": Case(((65, 129),), lambda torch, values: values.t().var(dim=0)),
    "norm": Case(((65, 129),), lambda torch, values: torch.linalg.vector_norm(values.t(), dim=1)),
    "maximum": Case(((65, 129),), lambda torch, values: values.t()[1:].amax(dim=0)),
    "log_softmax and loss": Case(((10, 64),), _loss),
    # One NaN in eight million normal numbers: pytorch#89283.
    "random numbers": Case(((4096,),), _random, differentiated=False),
}
"""Computations on contiguous and on awkwardly strided tensors.

A case that names a PyTorch issue reproduces the fault reported there: wrong numbers without an
error, most of them on MPS.
"""
