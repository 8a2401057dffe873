"""A scheduler that leaves the learning rate as it is."""

import torch

real = torch.optim.lr_scheduler.StepLR


def scheduler(optimizer, *more, **options):
    return real(torch.optim.SGD([torch.zeros(1)], lr=1.0), *more, **options)


torch.optim.lr_scheduler.StepLR = scheduler
