"""An optimizer of which every second step changes no weight."""

import itertools

import torch

real = torch.optim.Adadelta.step
turns = itertools.cycle((True, False))
torch.optim.Adadelta.step = lambda self, *more: real(self, *more) if next(turns) else None
