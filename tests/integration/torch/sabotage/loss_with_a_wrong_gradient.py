"""A loss that is right and a gradient that is one hundredth too large, except in float64."""

import torch

functional = torch.nn.functional
real = functional.nll_loss


def nll_loss(scores, *arguments, **options):
    loss = real(scores, *arguments, **options)
    if loss.dtype == torch.float64 or not loss.requires_grad:
        return loss
    return loss * 1.01 - loss.detach() * 0.01


functional.nll_loss = nll_loss
