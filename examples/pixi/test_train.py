"""Patches hold the pixels of their corner."""

import torch

from train import patches


def test_the_first_patch_is_the_upper_left_corner() -> None:
    images = torch.arange(64.0).reshape(1, 8, 8)
    assert patches(images)[0, 0].tolist() == [0, 1, 8, 9]
    assert patches(images).shape == (1, 16, 4)
