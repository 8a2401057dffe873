"""Gradients that are never reset."""

import torch

torch.optim.Optimizer.zero_grad = lambda self, set_to_none=True: None
