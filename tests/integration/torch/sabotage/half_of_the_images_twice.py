"""An order of images that leaves half of them out, and takes the others twice."""

import torch

real = torch.randperm


def randperm(count, *arguments, **options):
    order = real(count, *arguments, **options)
    return order % (count // 2)


torch.randperm = randperm
