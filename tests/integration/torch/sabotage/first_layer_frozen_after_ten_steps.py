"""An optimizer that forgets its first parameter after ten steps."""

import itertools

import torch

real = torch.optim.Adadelta.step
number = itertools.count()


def step(self, *more):
    first = self.param_groups[0]["params"][0]
    before = first.detach().clone()
    real(self, *more)
    if next(number) >= 10:
        with torch.no_grad():
            first.copy_(before)


torch.optim.Adadelta.step = step
