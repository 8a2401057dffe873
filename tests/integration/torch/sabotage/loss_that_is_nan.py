"""A loss that is NaN from the 20th step on, while the gradients stay right."""

import itertools

import torch

real = torch.nn.functional.nll_loss
calls = itertools.count(1)


def nll_loss(*arguments, **options):
    loss = real(*arguments, **options)
    return loss + float("nan") if next(calls) >= 20 else loss


torch.nn.functional.nll_loss = nll_loss
