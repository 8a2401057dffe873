"""Faults of a device, as a script for an interpreter with torch: which cases see each of them?

Each fault changes one operator of torch for every dtype but float64, the reference's, and prints
the cases that fail then. Most are faults that MPS has had.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from payload.numerics import arithmetic

functional = torch.nn.functional
Operator = Callable[..., Any]


def without_offset(tensor: Any) -> Any:
    """Read from the storage's beginning, as if a view had no offset."""
    return tensor.as_strided(tensor.shape, tensor.stride(), 0)


def as_if_contiguous(tensor: Any) -> Any:
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride())


# Each is called in place of the operator, which it is given first.


def weight_strides_ignored(
    real: Operator, images: Any, weight: Any, *rest: Any, **named: Any
) -> Any:
    usual = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
    return real(images, weight if usual else as_if_contiguous(weight), *rest, **named)


def offset_ignored(
    real: Operator, images: Any, *rest: Any, channels_last: bool, **named: Any
) -> Any:
    hit = images.storage_offset() and (images.stride(1) == 1) is channels_last
    return real(without_offset(images) if hit else images, *rest, **named)


def offset_ignored_by_operator(real: Operator, first: Any, *rest: Any, **named: Any) -> Any:
    return real(without_offset(first) if first.storage_offset() else first, *rest, **named)


def groups_only_in_the_first_image(
    real: Operator, images: Any, *rest: Any, groups: int = 1, **named: Any
) -> Any:
    result = real(images, *rest, groups=groups, **named)
    several = groups > 1 and len(images) > 1
    return torch.cat([result[:1], result[1:].roll(1, dims=1)]) if several else result


def channels_above_65536_left_out(
    real: Operator, images: Any, weight: Any, *rest: Any, **named: Any
) -> Any:
    most = min(1 << 16, weight.shape[1])
    few = images[:, :most] if images.shape[1] > 1 << 16 else images
    return real(few, weight[:, :most], *rest, **named)


def weight_without_gradient(
    real: Operator, images: Any, weight: Any, *rest: Any, **named: Any
) -> Any:
    return real(images, weight.detach() + 0 * weight, *rest, **named)


def one_value_is_nan(real: Operator, *arguments: Any, **named: Any) -> Any:
    result = real(*arguments, **named).clone()
    result[tuple(0 for _ in result.shape)] = float("nan")
    return result


def lost_in_a_strided_view(real: Operator, target: Any, *rest: Any, **named: Any) -> Any:
    return real(target, *rest, **named) if target.is_contiguous() else target


def too_large(
    real: Operator, first: Any, *rest: Any, factor: float, dtype: Any, **named: Any
) -> Any:
    result = real(first, *rest, **named)
    return result * factor if first.dtype == dtype else result


def kernels_without_two_rows(
    real: Operator, images: Any, weight: Any, *rest: Any, **named: Any
) -> Any:
    return real(images, weight.flip(2), *rest, **named)


a_tenth = partial(too_large, factor=1.1)
a_thousandth_too_large = partial(too_large, factor=1.001, dtype=torch.float32)

FAULTS: dict[str, tuple[Any, str, Operator]] = {
    "weight strides ignored": (functional, "conv2d", weight_strides_ignored),
    "channel slice": (functional, "conv2d", partial(offset_ignored, channels_last=True)),
    "chunk in conv2d": (functional, "conv2d", partial(offset_ignored, channels_last=False)),
    "chunk in matmul": (torch.Tensor, "__matmul__", offset_ignored_by_operator),
    "chunk in tanh": (torch, "tanh", offset_ignored_by_operator),
    "groups": (functional, "conv2d", groups_only_in_the_first_image),
    "many channels": (functional, "conv2d", channels_above_65536_left_out),
    "no weight gradient": (functional, "conv2d", weight_without_gradient),
    "one NaN": (functional, "conv2d", one_value_is_nan),
    "sum": (torch.Tensor, "sum", a_thousandth_too_large),
    "half linear": (functional, "linear", partial(a_tenth, dtype=torch.float16)),
    "in place": (torch.Tensor, "addcdiv_", lost_in_a_strided_view),
    "bfloat16 matmul": (
        torch.Tensor,
        "__matmul__",
        partial(a_tenth, dtype=torch.bfloat16),
    ),
    "float16 conv2d": (functional, "conv2d", partial(a_tenth, dtype=torch.float16)),
    "flipped conv3d": (functional, "conv3d", kernels_without_two_rows),
    "nothing dropped": (functional, "dropout", lambda real, values, *rest: values),
    "one random NaN": (torch, "randn_like", one_value_is_nan),
}


@contextlib.contextmanager
def injected(place: Any, name: str, fault: Operator) -> Iterator[None]:
    real = getattr(place, name)

    def either(first: Any, *rest: Any, **options: Any) -> Any:
        chosen = real if first.dtype == torch.float64 else partial(fault, real)
        return chosen(first, *rest, **options)

    setattr(place, name, either)
    try:
        yield
    finally:
        setattr(place, name, real)


def failing() -> list[str]:
    found = []
    for dtype in ("float32", *arithmetic.HALVES):
        errors = arithmetic.errors(torch, "cpu", dtype, "float32")
        assert not errors.lacking
        found += [
            f"{dtype} {case}" for case in errors.by_case if errors.by_case[case] > errors.tolerance
        ]
    return found


def remember_references() -> None:
    """Compute each float64 reference once: no fault touches it, and they take most of the time."""
    run = arithmetic._run
    known = {}

    def remembered(torch: Any, case: Any, place: str, rounded: str, dtype: str) -> Any:
        if dtype != "float64":
            return run(torch, case, place, rounded, dtype)
        if (case, rounded) not in known:
            known[case, rounded] = run(torch, case, place, rounded, dtype)
        return known[case, rounded]

    arithmetic._run = remembered


def main() -> None:
    remember_references()
    seen = {"none": failing()}
    for title, (place, name, fault) in FAULTS.items():
        with injected(place, name, fault):
            seen[title] = failing()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
