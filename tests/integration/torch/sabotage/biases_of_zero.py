"""Biases that are zero before the first step."""

import torch

for layer in (torch.nn.Linear, torch.nn.Conv2d):

    def reset(self, real=layer.reset_parameters):
        real(self)
        torch.nn.init.zeros_(self.bias)

    layer.reset_parameters = reset
