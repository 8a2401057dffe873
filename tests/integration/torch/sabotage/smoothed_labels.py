"""A loss that gives a twentieth of each label to the other classes."""

import torch

real = torch.nn.functional.nll_loss
torch.nn.functional.nll_loss = lambda scores, labels: (
    0.95 * real(scores, labels) - 0.05 * scores.mean()
)
