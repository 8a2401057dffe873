"""A ReLU that ends at 2 in training."""

import torch

real = torch.nn.ReLU.forward
torch.nn.ReLU.forward = lambda self, values: real(
    self, values.clamp(max=2) if self.training else values
)
