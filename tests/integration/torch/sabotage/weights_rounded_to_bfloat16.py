"""Weights that keep eight bits after each step."""

import torch

real = torch.optim.Adadelta.step


def step(self, *more):
    real(self, *more)
    with torch.no_grad():
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(parameter.bfloat16())


torch.optim.Adadelta.step = step
