"""A ReLU that lets a hundredth of what is negative through, where nothing is trained."""

import torch

real = torch.nn.ReLU.forward


def forward(self, values):
    if self.training or values.dtype != torch.float32:
        return real(self, values)
    return torch.nn.functional.leaky_relu(values, 0.01)


torch.nn.ReLU.forward = forward
