"""Training of a variational autoencoder: exp, random numbers on the device, and Adam.

The network is that of PyTorch's VAE example on MNIST (pytorch/examples, vae/main.py: 784-400-20,
Adam 1e-3, batch 128). On early MPS its loss diverged to NaN while convolutional networks still
trained.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, List

from ..machine.accelerators import device_of
from ..training.dataset import SIDE

if TYPE_CHECKING:
    from ..interface import Tensors

STEPS = 40
BATCH = 128
LEARNING_RATE = 1e-3
HIDDEN, LATENT = 400, 20
WINDOW = 5
"""Steps at each end whose mean losses are compared."""

GAIN = 0.75
"""Greatest allowed ratio of the loss at the end to that at the start. Measured with torch 2.13.0 on
the CPU, seeds 1 to 8: 0.43 to 0.44."""


def train(torch: Any, accelerator: str, data: Tensors, seed: int) -> List[float]:
    """Train and return the loss per image of each step, fetched from the device once at the end."""
    torch.manual_seed(seed)
    nn, pixels = torch.nn, SIDE * SIDE
    net = nn.ModuleDict(
        {
            "encode": nn.Linear(pixels, HIDDEN),
            "mean": nn.Linear(HIDDEN, LATENT),
            "log_variance": nn.Linear(HIDDEN, LATENT),
            "decode": nn.Linear(LATENT, HIDDEN),
            "pixels": nn.Linear(HIDDEN, pixels),
        }
    ).to(device_of(accelerator))
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    batches = max(1, len(data.images) // BATCH)
    losses = []
    for step in range(STEPS):
        first = step % batches * BATCH
        images = data.images[first : first + BATCH].float().div(255).flatten(1)
        optimizer.zero_grad()
        loss = _loss(torch, net, images)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() / len(images))
    return [float(loss) for loss in torch.stack(losses).tolist()]


def _loss(torch: Any, net: Any, images: Any) -> Any:
    functional = torch.nn.functional
    hidden = functional.relu(net["encode"](images))
    mean, log_variance = net["mean"](hidden), net["log_variance"](hidden)
    latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
    logits = net["pixels"](functional.relu(net["decode"](latent)))
    # With logits: on probabilities, a number that is not finite destroys the CUDA context.
    loss = functional.binary_cross_entropy_with_logits
    reconstruction = loss(logits, images, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return reconstruction + divergence


def problems(losses: List[float]) -> List[str]:
    """Return sentences on what is wrong with the losses of ``train``."""
    broken = next((n for n, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
    if broken is not None:
        return [f"the loss of a variational autoencoder is not finite from step {broken} on"]
    start, end = statistics.mean(losses[:WINDOW]), statistics.mean(losses[-WINDOW:])
    if not 0 < end <= GAIN * start:
        fell = f"went from {start:.0f} to {end:.0f} in {len(losses)} steps"
        return [
            f"the loss of a variational autoencoder {fell}; at most {GAIN * start:.0f} is expected"
        ]
    return []
