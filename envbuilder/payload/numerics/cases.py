"""Small computations with known results, on contiguous and on awkwardly strided tensors.

Each case takes torch and ``make(*shape)``, which draws the same numbers on every device, and
returns what must agree: results and the gradients of its inputs. A case that names a PyTorch issue
reproduces the fault reported there: wrong numbers without an error, most of them on MPS.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

Outputs = List[Any]
Make = Callable[..., Any]
Case = Callable[[Any, Make], Outputs]

MANY_CHANNELS = (1 << 16) + 1
LONG = 100_003


def _with_gradients(torch: Any, result: Any, inputs: List[Any]) -> Outputs:
    # With the result as its own cotangent, the gradients depend on each of its elements.
    return [result, *torch.autograd.grad(result, inputs, result.detach())]


def _matmul(torch: Any, make: Make) -> Outputs:
    left, right = make(257, 129), make(129, 65)
    return _with_gradients(torch, left @ right, [left, right])


def _matmul_strided(torch: Any, make: Make) -> Outputs:
    left, right = make(129, 257), make(258, 65)
    return _with_gradients(torch, left.t()[1:, :] @ right[::2, :], [left, right])


def _matmul_chunks(torch: Any, make: Make) -> Outputs:
    # Views from chunk: pytorch#169342.
    whole = make(64, 96)
    first, second, third = whole.chunk(3, dim=1)
    return _with_gradients(torch, second @ third.t() @ first, [whole])


def _matmul_expanded(torch: Any, make: Make) -> Outputs:
    left, right = make(1, 33, 65), make(7, 65, 17)
    return _with_gradients(torch, left.expand(7, 33, 65) @ right, [left, right])


def _linear(torch: Any, make: Make) -> Outputs:
    values, weight, bias = make(64, 134), make(10, 129), make(10)
    result = torch.nn.functional.linear(values[:, 5:], weight, bias)
    return _with_gradients(torch, result, [values, weight, bias])


def _chunks_elementwise(torch: Any, make: Make) -> Outputs:
    # Views from chunk: pytorch#169342.
    whole = make(33, 96)
    first, second, third = whole.chunk(3, dim=1)
    return _with_gradients(torch, first * second + torch.tanh(third), [whole])


def _in_place(torch: Any, make: Make) -> Outputs:
    # In-place updates as in optimizers, of a non-contiguous view: pytorch#118115.
    target, left, right = (make(*shape).detach() for shape in ((33, 65), (65, 33), (65, 33)))
    view = target.t()
    view.mul_(0.9).addcmul_(left, right, value=0.5).addcdiv_(left, right.abs() + 1, value=0.5)
    return [target]


def _convolution(torch: Any, make: Make) -> Outputs:
    images, weight, bias = make(8, 16, 20, 20), make(24, 16, 3, 3), make(24)
    result = torch.nn.functional.conv2d(images, weight, bias)
    return _with_gradients(torch, result, [images, weight, bias])


def _convolution_first(torch: Any, make: Make) -> Outputs:
    images, weight = make(8, 1, 28, 28), make(32, 1, 3, 3)
    return _with_gradients(torch, torch.nn.functional.conv2d(images, weight), [images, weight])


def _convolution_channels_last(torch: Any, make: Make) -> Outputs:
    images, weight = make(8, 16, 20, 20), make(24, 16, 3, 3)
    layout = torch.channels_last
    result = torch.nn.functional.conv2d(
        images.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
    )
    return _with_gradients(torch, result, [images, weight])


def _convolution_channel_slice(torch: Any, make: Make) -> Outputs:
    # A channel slice of a channels_last tensor: pytorch#180984.
    images, weight = make(8, 20, 20, 20), make(24, 16, 3, 3)
    slices = images.contiguous(memory_format=torch.channels_last)[:, 2:18]
    return _with_gradients(torch, torch.nn.functional.conv2d(slices, weight), [images, weight])


def _convolution_strided_weight(torch: Any, make: Make) -> Outputs:
    # A non-contiguous weight: pytorch#192212.
    images, weight = make(8, 16, 20, 20), make(16, 24, 3, 3)
    result = torch.nn.functional.conv2d(images, weight.transpose(0, 1), stride=2, padding=1)
    return _with_gradients(torch, result, [images, weight])


def _convolution_chunk(torch: Any, make: Make) -> Outputs:
    # Views from chunk: pytorch#169342.
    images, weight = make(8, 32, 12, 12), make(24, 16, 3, 3)
    _, second = images.chunk(2, dim=1)
    return _with_gradients(torch, torch.nn.functional.conv2d(second, weight), [images, weight])


def _convolution_grouped(torch: Any, make: Make) -> Outputs:
    # Groups, with more than one image: pytorch#188335.
    images, weight = make(8, 16, 20, 20), make(24, 4, 3, 3)
    result = torch.nn.functional.conv2d(images, weight, groups=4)
    return _with_gradients(torch, result, [images, weight])


def _convolution_expanded(torch: Any, make: Make) -> Outputs:
    images, weight = make(1, 16, 12, 12), make(24, 16, 3, 3)
    result = torch.nn.functional.conv2d(images.expand(8, 16, 12, 12), weight, dilation=2)
    return _with_gradients(torch, result, [images, weight])


def _convolution_many_channels(torch: Any, make: Make) -> Outputs:
    # More than 65,536 channels: pytorch#129207.
    images, weight = make(1, MANY_CHANNELS, 1, 2), make(2, MANY_CHANNELS, 1, 1)
    return _with_gradients(torch, torch.nn.functional.conv2d(images, weight), [images, weight])


def _convolution_3d(torch: Any, make: Make) -> Outputs:
    # pytorch#197114.
    images, weight = make(2, 4, 8, 8, 8), make(6, 4, 3, 3, 3)
    return _with_gradients(torch, torch.nn.functional.conv3d(images, weight), [images, weight])


def _pool(torch: Any, make: Make) -> Outputs:
    # Values only: if two of a window are equal, the gradient may go to either.
    images = make(8, 16, 20, 20).contiguous(memory_format=torch.channels_last)
    return [torch.nn.functional.max_pool2d(images, 2)]


def _sums(torch: Any, make: Make) -> Outputs:
    values = make(129, 257)
    rows, columns = values.sum(dim=0), values.sum(dim=1)
    return [rows, columns, *torch.autograd.grad(rows, [values], rows.detach())]


def _sum_strided(torch: Any, make: Make) -> Outputs:
    values = make(129, 257)
    return _with_gradients(torch, values.t()[3:, ::2].sum(dim=0), [values])


def _sum_expanded(torch: Any, make: Make) -> Outputs:
    values = make(129, 1)
    return _with_gradients(torch, values.expand(129, 65).sum(dim=0), [values])


def _mean_long(torch: Any, make: Make) -> Outputs:
    # Long enough that accumulation in half precision would stall.
    values = make(LONG)
    return [(values + 1).mean().reshape(1)]


def _spread(torch: Any, make: Make) -> Outputs:
    values = make(65, 129)
    view = values.t()
    norms = torch.linalg.vector_norm(view, dim=1)
    return [
        *_with_gradients(torch, view.var(dim=0), [values]),
        *_with_gradients(torch, norms, [values]),
    ]


def _maximum(torch: Any, make: Make) -> Outputs:
    values = make(65, 129)
    return _with_gradients(torch, values.t()[1:].amax(dim=0), [values])


def _loss(torch: Any, make: Make) -> Outputs:
    logits = make(10, 64)
    labels = torch.arange(64, device=logits.device) % 10
    log_probabilities = torch.nn.functional.log_softmax(logits.t(), dim=1)
    result = torch.nn.functional.nll_loss(log_probabilities, labels).reshape(1)
    return _with_gradients(torch, result, [logits])


CASES: Dict[str, Case] = {
    "matmul": _matmul,
    "matmul of strided views": _matmul_strided,
    "matmul of chunks": _matmul_chunks,
    "matmul of an expanded batch": _matmul_expanded,
    "linear of a slice": _linear,
    "elementwise on chunks": _chunks_elementwise,
    "in place into a strided view": _in_place,
    "conv2d": _convolution,
    "conv2d of one channel": _convolution_first,
    "conv2d channels_last": _convolution_channels_last,
    "conv2d of a channel slice": _convolution_channel_slice,
    "conv2d with a strided weight": _convolution_strided_weight,
    "conv2d of a chunk": _convolution_chunk,
    "conv2d in groups": _convolution_grouped,
    "conv2d of an expanded image": _convolution_expanded,
    "conv2d of 65,537 channels": _convolution_many_channels,
    "conv3d": _convolution_3d,
    "max_pool2d channels_last": _pool,
    "sum of rows and columns": _sums,
    "sum of a strided view": _sum_strided,
    "sum of an expanded tensor": _sum_expanded,
    "mean of 100,003 numbers": _mean_long,
    "variance and norm": _spread,
    "maximum": _maximum,
    "log_softmax and loss": _loss,
}
