"""Evaluation by the average of the last weights instead of the last ones."""

import torch

real = torch.nn.Linear.forward


def forward(self, values):
    if values.dtype != torch.float32:
        return real(self, values)
    with torch.no_grad():
        average = getattr(self, "average", self.weight)
        if self.training:
            self.average = 0.5 * average + 0.5 * self.weight
            return real(self, values) if not torch.is_grad_enabled() else forward_now(self, values)
    return torch.nn.functional.linear(values, average, self.bias)


def forward_now(self, values):
    with torch.enable_grad():
        return real(self, values)


torch.nn.Linear.forward = forward
