"""Training images with a little noise, as if they were augmented."""

import torch

real = torch.nn.Sequential.forward
torch.nn.Sequential.forward = lambda self, images: real(
    self,
    images + 0.01 * torch.randn_like(images) if self.training and images.dim() == 4 else images,
)
