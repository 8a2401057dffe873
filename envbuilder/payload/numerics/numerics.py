"""Correctness of training steps: the real network's loss and gradients, compared with float64.

The reference is computed on the CPU. All errors are relative and norm-wise: the norm of the
difference divided by the norm of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from ..training import eager, model
from .arithmetic import or_infinite, relative_error

if TYPE_CHECKING:
    from ..interface import Tensors

SEED = 1
LEARNING_RATE = 0.1
"""Of the plain descent from one trial to the next."""

TRIALS = 3
"""Two would expose a backend that keeps using weights of an earlier step."""

GRADIENT_TOLERANCE = {"float32": 5e-3, "tf32": 2e-1, "bfloat16": 5e-1}
"""Measured with torch 2.13.0 on the CPU: in 250 batches eager float32 differs by 3e-6 (median) and
by at most 2.8e-3, where rounding makes one max-pool window of half a million pick another pixel.
With weights rounded as TF32 does, gradients differ by 1e-2 to 4e-2 (30 batches); a wrong gradient
differs by about 1."""


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
    """The largest errors of the loss and of each parameter's gradient over all trials."""

    loss: float
    gradients: Dict[str, float]

    def worst(self) -> Tuple[str, float]:
        """Return the name and the error of what differs most: "loss" or a parameter.

        In a tie between parameters, this is the one nearest to the input.
        """
        name = max(self.gradients, key=lambda key: self.gradients[key])
        if self.loss > self.gradients[name]:
            return "loss", self.loss
        return name, self.gradients[name]

    def passed(self, tolerance: float) -> bool:
        """Return whether the loss and all gradients are within the tolerance."""
        return self.worst()[1] <= tolerance


def network(torch: Any, form: model.Form) -> Any:
    """Build the real network with fixed weights and no dropout.

    There is no dropout because it differs between devices.
    """
    return model.build(torch, SEED, form, shares=(0.0, 0.0))


def trials(torch: Any, data: Tensors) -> List[Trial]:
    """Compute consecutive training steps on real batches of 64, eagerly, in float64 on the CPU.

    The network has its published form. The batch and the weights change from step to step, because
    a backend may be right at first and then reuse a cached batch or cached weights.
    """
    net = network(torch, model.PUBLISHED).double()
    result = []
    for images, labels in eager.batches(data, TRIALS):
        weights = {name: p.detach().float().clone() for name, p in net.named_parameters()}
        exact = backward(torch, net, net, images.cpu().double(), labels.cpu())
        result.append(Trial(images, labels, weights, exact))
        with torch.no_grad():
            for parameter in net.parameters():
                # Rounded to float32, so that both sides of the next trial begin with equal weights.
                moved = parameter - LEARNING_RATE * parameter.grad
                parameter.copy_(moved.float().double())
    return result


def check(torch: Any, form: model.Form, net: Any, call: Any, steps: List[Trial]) -> Comparison:
    """Repeat the trials with ``call`` and return the errors.

    ``call`` is ``net`` or its compiled form.
    """
    ours = []
    for trial in steps:
        load_weights(torch, net, trial)
        images = model.arrange(torch, trial.images, form)
        ours.append(backward(torch, net, call, images, trial.labels))
    return compare(ours, steps)


def load_weights(torch: Any, net: Any, trial: Trial) -> None:
    """Overwrite the network's weights in place, as an optimizer does, with those of a trial."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(trial.weights[name])


def backward(torch: Any, net: Any, call: Any, images: Any, labels: Any) -> Step:
    """Run ``call`` forward and backward, and return its loss and the gradients of ``net``.

    ``call`` is ``net`` or its compiled form.
    """
    net.train()
    net.zero_grad()
    loss = torch.nn.functional.nll_loss(call(images), labels)
    loss.backward()
    # Cloned: the next backward pass may write to the same memory.
    gradients = {name: p.grad.detach().cpu().double().clone() for name, p in net.named_parameters()}
    return Step(float(loss.detach()), gradients)


def compare(ours: List[Step], steps: List[Trial]) -> Comparison:
    """Return the largest errors of ``ours`` relative to the exact results.

    ``ours`` contains one step per trial.
    """
    losses = [0.0]
    gradients = dict.fromkeys(steps[0].exact.gradients, 0.0)
    for number, trial in enumerate(steps):
        error = abs(ours[number].loss - trial.exact.loss) / abs(trial.exact.loss)
        losses.append(or_infinite(error))
        for name, exact in trial.exact.gradients.items():
            relative = relative_error(ours[number].gradients[name], exact)
            gradients[name] = max(gradients[name], relative)
    return Comparison(max(losses), gradients)
