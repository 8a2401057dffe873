"""Gradients that are clipped to a norm of a quarter."""

import torch

real = torch.optim.Adadelta.step


def step(self, *more):
    torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.25)
    return real(self, *more)


torch.optim.Adadelta.step = step
