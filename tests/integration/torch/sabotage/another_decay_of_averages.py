"""Adadelta whose averages forget half as fast."""

import torch

real = torch.optim.Adadelta.__init__


def init(self, parameters, **options):
    real(self, parameters, rho=0.95, **options)


torch.optim.Adadelta.__init__ = init
