"""Steps that are a fifth as long as they should be."""

import torch

real = torch.optim.Adadelta.step


def step(self, *more):
    group = self.param_groups[0]
    rate = group["lr"]
    group["lr"] = rate / 5
    real(self, *more)
    group["lr"] = rate


torch.optim.Adadelta.step = step
