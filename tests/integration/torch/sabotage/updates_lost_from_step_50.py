"""An optimizer that is right for 50 steps, then loses half of each update."""

import itertools

import torch

real = torch.optim.Adadelta.step
number = itertools.count()


def step(self, *more):
    group = self.param_groups[0]
    rate = group["lr"]
    group["lr"] = rate / 2 if next(number) >= 50 else rate
    real(self, *more)
    group["lr"] = rate


torch.optim.Adadelta.step = step
