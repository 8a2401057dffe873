"""Training images that are mirrored."""

import torch

real = torch.nn.Sequential.forward
torch.nn.Sequential.forward = lambda self, images: real(
    self, images.flip(3) if self.training and images.dim() == 4 else images
)
