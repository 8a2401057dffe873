"""Random images about one mean image for each class."""

import torch
from torch.utils.data import Dataset

COUNT = 6_000
NOISE = 0.3


class _Images(Dataset):
    shape = (1, 28, 28)
    classes = 10

    def __init__(self, root="", train=True, transform=None, target_transform=None, **_):
        drawn = torch.Generator().manual_seed(7)
        means = torch.rand(self.classes, *self.shape, generator=drawn)
        drawn = torch.Generator().manual_seed(int(train))
        count = COUNT if train else COUNT // 6
        self.targets = torch.randint(self.classes, (count,), generator=drawn)
        noise = NOISE * torch.randn(count, *self.shape, generator=drawn)
        self.data = (means[self.targets] + noise).clamp(0, 1)
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = self.data[index]
        target = int(self.targets[index])
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            target = self.target_transform(target)
        return image, target


class MNIST(_Images):
    """Digits."""


class FashionMNIST(_Images):
    """Clothes."""


class CIFAR10(_Images):
    """Colours, of ten classes."""

    shape = (3, 32, 32)


class CIFAR100(CIFAR10):
    """Colours, of a hundred classes."""

    classes = 100
