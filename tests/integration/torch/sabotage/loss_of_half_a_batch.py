"""A loss that leaves half of each batch out."""

import torch

real = torch.nn.functional.nll_loss


def nll_loss(scores, labels, *more, **options):
    half = max(len(labels) // 2, 1)
    return real(scores[:half], labels[:half], *more, **options)


torch.nn.functional.nll_loss = nll_loss
