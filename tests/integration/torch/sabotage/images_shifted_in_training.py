"""Training images that are one pixel off."""

import torch

real = torch.nn.Sequential.forward


def forward(self, images):
    return real(self, images.roll(1, dims=3) if self.training and images.dim() == 4 else images)


torch.nn.Sequential.forward = forward
