"""A softmax whose scores are 1 % too large in training."""

import torch

real = torch.nn.LogSoftmax.forward
torch.nn.LogSoftmax.forward = lambda self, values: real(
    self, values * 1.01 if self.training else values
)
