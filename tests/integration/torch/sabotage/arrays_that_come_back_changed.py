"""Tensors that share memory with an array of numpy, and are returned as another one."""

import torch

real = torch.Tensor.numpy
torch.Tensor.numpy = lambda tensor, **options: real(tensor, **options)[::-1]
