"""Training images with sixteen grey levels."""

import torch

real = torch.nn.Sequential.forward


def forward(self, images):
    if self.training and images.dim() == 4:
        levels = ((images * 0.3081 + 0.1307) * 15).round() / 15
        images = (levels - 0.1307) / 0.3081
    return real(self, images)


torch.nn.Sequential.forward = forward
