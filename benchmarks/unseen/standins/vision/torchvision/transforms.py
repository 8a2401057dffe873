"""Transforms of tensors, as the images here are tensors."""

import torch


class Compose:
    """Apply one after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """Return the tensor as it is."""

    def __call__(self, image):
        return image


class Normalize:
    """Subtract a mean and divide by a deviation."""

    def __init__(self, mean, std):
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image):
        return (image - self.mean) / self.std


class Resize:
    """Change height and width."""

    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        return torch.nn.functional.interpolate(image[None], (self.size, self.size))[0]


class Lambda:
    """Apply a function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, image):
        return self.function(image)
