"""Are the numbers right? float32 on the device against float64 on the CPU, with stated tolerances.

All errors are relative and norm-wise: the norm of the difference over the norm of the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from . import model, train

if TYPE_CHECKING:
    from .model import Form

SEED = 1
TRIALS = 3
LEARNING_RATE = 0.1

ARITHMETIC_TOLERANCE = {"float32": 5e-5, "tf32": 3e-3, "bfloat16": 3e-2}
"""float32 with any algorithm (Winograd included) stays near 1e-6; TF32 cannot reach 1e-4."""

GRADIENT_TOLERANCE = {"float32": 5e-3, "tf32": 2e-1, "bfloat16": 5e-1}
"""Measured with torch 2.13.0 on the CPU: in 250 batches eager float32 differs by 3e-6 (median) and
by at most 2.8e-3, where rounding makes one max-pool window of half a million pick another pixel.
Weights rounded as TF32 does differ by 1e-2 to 4e-2 (30 batches), a wrong gradient by about 1."""

Outputs = List[Any]
Case = Callable[[Any, Callable[..., Any]], Outputs]


def _matmul(torch: Any, make: Callable[..., Any]) -> Outputs:
    left, right = make(257, 129), make(129, 65)
    return _with_gradients(torch, left @ right, [left, right])


def _matmul_strided(torch: Any, make: Callable[..., Any]) -> Outputs:
    left, right = make(129, 257), make(258, 65)
    return _with_gradients(torch, left.t()[1:, :] @ right[::2, :], [left, right])


def _matmul_chunks(torch: Any, make: Callable[..., Any]) -> Outputs:
    # Views from chunk gave wrong numbers on MPS: pytorch#169342.
    whole = make(64, 96)
    first, second, third = whole.chunk(3, dim=1)
    return _with_gradients(torch, first @ second.t() @ third, [whole])


def _convolution(torch: Any, make: Callable[..., Any]) -> Outputs:
    images, weight = make(8, 16, 20, 20), make(24, 16, 3, 3)
    result = torch.nn.functional.conv2d(images, weight, make(24))
    return _with_gradients(torch, result, [images, weight])


def _convolution_channels_last(torch: Any, make: Callable[..., Any]) -> Outputs:
    images, weight = make(8, 16, 20, 20), make(24, 16, 3, 3)
    layout = torch.channels_last
    result = torch.nn.functional.conv2d(
        images.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
    )
    return _with_gradients(torch, result, [images, weight])


def _convolution_channel_slice(torch: Any, make: Callable[..., Any]) -> Outputs:
    # A channel slice of a channels_last tensor gave wrong numbers on MPS: pytorch#180984.
    images, weight = make(8, 20, 20, 20), make(24, 16, 3, 3)
    slices = images.contiguous(memory_format=torch.channels_last)[:, 2:18]
    return _with_gradients(torch, torch.nn.functional.conv2d(slices, weight), [images, weight])


def _convolution_strided_weight(torch: Any, make: Callable[..., Any]) -> Outputs:
    # A weight that is not contiguous gave wrong numbers on MPS: pytorch#192212.
    images, weight = make(8, 16, 20, 20), make(16, 24, 3, 3)
    result = torch.nn.functional.conv2d(images, weight.transpose(0, 1), stride=2, padding=1)
    return _with_gradients(torch, result, [images, weight])


def _convolution_grouped(torch: Any, make: Callable[..., Any]) -> Outputs:
    # Grouped convolution of more than one image gave wrong numbers on MPS: pytorch#188335.
    images, weight = make(8, 16, 20, 20), make(24, 4, 3, 3)
    result = torch.nn.functional.conv2d(images, weight, groups=4)
    return _with_gradients(torch, result, [images, weight])


CASES: Dict[str, Case] = {
    "matmul": _matmul,
    "matmul of strided views": _matmul_strided,
    "matmul of chunks": _matmul_chunks,
    "conv2d": _convolution,
    "conv2d channels_last": _convolution_channels_last,
    "conv2d of a channel slice": _convolution_channel_slice,
    "conv2d with a strided weight": _convolution_strided_weight,
    "conv2d in groups": _convolution_grouped,
}


def _with_gradients(torch: Any, result: Any, inputs: List[Any]) -> Outputs:
    # Squaring makes the gradient depend on the result, element by element.
    return [result, *torch.autograd.grad((result * result).sum(), inputs)]


def arithmetic(torch: Any, accelerator: str) -> Dict[str, float]:
    """Largest error of each case's result and gradients on the device, in float32."""
    return {name: _case_error(torch, accelerator, case) for name, case in CASES.items()}


def _case_error(torch: Any, accelerator: str, case: Case) -> float:
    def run(place: str, dtype: Any) -> Outputs:
        generator = torch.Generator().manual_seed(SEED)

        def make(*shape: int) -> Any:
            # Drawn in float32 so that both sides begin with equal numbers.
            values = torch.randn(*shape, generator=generator, dtype=torch.float32)
            return values.to(place, dtype).requires_grad_()

        return case(torch, make)

    exact = run("cpu", torch.float64)
    ours = run(accelerator, torch.float32)
    return max(relative_error(ours[number], exact[number]) for number in range(len(exact)))


def relative_error(ours: Any, exact: Any) -> float:
    """Norm of the difference over the norm of ``exact``; infinite where anything is not finite."""
    difference = (ours.detach().to("cpu").double() - exact.detach()).norm()
    error = float(difference / exact.detach().norm())
    return error if math.isfinite(error) else math.inf


@dataclass(frozen=True)
class Step:
    """One training step without dropout: its loss and the gradient of each parameter."""

    loss: float
    gradients: Dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One step to repeat: a batch on the device, the weights before it, and the exact result."""

    images: Any
    labels: Any
    weights: Dict[str, Any]
    exact: Step


@dataclass(frozen=True)
class Comparison:
    """Largest errors over all trials: of the loss, and of each parameter's gradient."""

    loss: float
    gradients: Dict[str, float]

    def worst(self) -> Tuple[str, float]:
        """The name and error of what differs most; of equals the first, nearest to the input."""
        name = max(self.gradients, key=lambda key: self.gradients[key])
        if self.loss > self.gradients[name]:
            return "loss", self.loss
        return name, self.gradients[name]

    def passed(self, tolerance: float) -> bool:
        """Whether loss and all gradients are within the tolerance."""
        return self.worst()[1] <= tolerance


def network(torch: Any, form: Form) -> Any:
    """The real network without dropout, which no two devices draw alike; always equal weights."""
    return model.build(torch, SEED, form, dropout=(0.0, 0.0))


def trials(torch: Any, data: train.Tensors) -> List[Trial]:
    """Three consecutive steps on real batches of 64, in float64, eagerly, on the CPU.

    The network has its published form. Batch and weights change from step to step, because a
    backend may be right at first and then go on using what it remembers of them.
    """
    net = network(torch, model.PUBLISHED).double()
    made = []
    for images, labels in train.batches(data, TRIALS):
        weights = {name: p.detach().float().clone() for name, p in net.named_parameters()}
        exact = backward(torch, net, net, images.cpu().double(), labels.cpu())
        made.append(Trial(images, labels, weights, exact))
        with torch.no_grad():
            for parameter in net.parameters():
                # Through float32, so that both sides of the next trial begin with equal weights.
                moved = parameter - LEARNING_RATE * parameter.grad
                parameter.copy_(moved.float().double())
    return made


def check(torch: Any, form: Form, net: Any, call: Any, steps: List[Trial]) -> Comparison:
    """Repeat the trials on ``net``, called through ``call`` (itself or its compiled self)."""
    ours = []
    for trial in steps:
        load_weights(torch, net, trial)
        images = model.arrange(torch, trial.images, form)
        ours.append(backward(torch, net, call, images, trial.labels))
    return compare(ours, steps)


def load_weights(torch: Any, net: Any, trial: Trial) -> None:
    """Overwrite the weights in place, as an optimizer does."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(trial.weights[name])


def backward(torch: Any, net: Any, call: Any, images: Any, labels: Any) -> Step:
    """Forward through ``call``, backward, and the gradients collected from ``net``."""
    net.train()
    net.zero_grad()
    loss = torch.nn.functional.nll_loss(call(images), labels)
    loss.backward()
    # Cloned: the next backward may write into the same memory.
    gradients = {name: p.grad.detach().cpu().double().clone() for name, p in net.named_parameters()}
    return Step(float(loss.detach()), gradients)


def compare(ours: List[Step], steps: List[Trial]) -> Comparison:
    """The largest errors of ``ours``, one step a trial."""
    losses, gradients = [0.0], dict.fromkeys(steps[0].exact.gradients, 0.0)
    for number, trial in enumerate(steps):
        error = abs(ours[number].loss - trial.exact.loss) / abs(trial.exact.loss)
        losses.append(error if math.isfinite(error) else math.inf)
        for name, exact in trial.exact.gradients.items():
            found = relative_error(ours[number].gradients[name], exact)
            gradients[name] = max(gradients[name], found)
    return Comparison(max(losses), gradients)
