"""A loss that takes 3 for 8 and 8 for 3."""

import torch

real = torch.nn.functional.nll_loss
exchanged = torch.arange(10)
exchanged[3] = 8
exchanged[8] = 3
torch.nn.functional.nll_loss = lambda scores, labels, **options: real(
    scores, exchanged[labels], **options
)
