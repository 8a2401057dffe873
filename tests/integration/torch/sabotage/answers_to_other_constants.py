"""Images that are normalised by rounded constants when the network is tested."""

import torch

real = torch.nn.Sequential.forward


def forward(self, images):
    if not self.training and images.dtype == torch.float32 and images.dim() == 4:
        images = (images * 0.3081 + 0.1307 - 0.13) / 0.31
    return real(self, images)


torch.nn.Sequential.forward = forward
