"""Gradients that are one per cent off, each in its own way."""

import torch

real = torch.optim.Adadelta.step


def step(self, *more):
    for parameter in self.param_groups[0]["params"]:
        parameter.grad.mul_(1 + 0.01 * torch.randn_like(parameter.grad))
    return real(self, *more)


torch.optim.Adadelta.step = step
