"""A ReLU that lets a hundredth of what is below zero through."""

import torch

torch.nn.ReLU.forward = lambda self, values: torch.nn.functional.leaky_relu(values, 0.01)
