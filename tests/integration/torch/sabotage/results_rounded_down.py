"""Products of linear layers that lose their last twelve bits, in training."""

import torch

real = torch.nn.Linear.forward


def forward(self, values):
    result = real(self, values)
    if not self.training or result.dtype != torch.float32:
        return result
    cut = (result.detach().view(torch.int32) & ~0xFFF).view(torch.float32)
    return result + (cut - result.detach())


torch.nn.Linear.forward = forward
