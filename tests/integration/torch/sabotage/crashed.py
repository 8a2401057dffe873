"""A library that writes to address 0."""

import ctypes

import torch

torch.optim.Adadelta.step = lambda self, closure=None: ctypes.memset(0, 0, 1)
