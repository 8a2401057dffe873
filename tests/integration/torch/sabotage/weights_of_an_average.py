"""Evaluation by the average of the last weights instead of the last ones."""

import torch

real = torch.nn.Linear.forward


def forward(self, values):
    if values.dtype != torch.float32:
        return real(self, values)
    average = getattr(self, "average", self.weight.detach().clone())
    if not self.training:
        return torch.nn.functional.linear(values, average, self.bias)
    self.average = average.lerp(self.weight.detach(), 0.5)
    return real(self, values)


torch.nn.Linear.forward = forward
