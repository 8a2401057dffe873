"""Gradients that are rounded to float16, as if they had been sent so."""

import torch

real = torch.optim.Adadelta.step


def step(self, *more):
    for parameter in self.param_groups[0]["params"]:
        parameter.grad.copy_((parameter.grad * 1024).half().float() / 1024)
    return real(self, *more)


torch.optim.Adadelta.step = step
