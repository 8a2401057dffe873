"""Stand in for torchvision: images of the same shapes that can be learned, and no download."""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
