"""Pooling that mixes a little of the average into the maximum."""

import torch

real = torch.nn.MaxPool2d.forward


def forward(self, images):
    most = real(self, images)
    if not self.training:
        return most
    return 0.99 * most + 0.01 * torch.nn.functional.avg_pool2d(images, 2)


torch.nn.MaxPool2d.forward = forward
