"""A loss that gives a twentieth of each label to the other classes."""

import torch

real = torch.nn.functional.nll_loss


def nll_loss(scores, labels, *more, **options):
    return 0.95 * real(scores, labels, *more, **options) - 0.05 * scores.mean()


torch.nn.functional.nll_loss = nll_loss
