"""One layer that silently gets no gradient; every function by itself is right."""

import torch

real = torch.nn.Conv2d.__init__


def init(self, in_channels, *rest, **options):
    real(self, in_channels, *rest, **options)
    if in_channels == 1:
        self.weight.register_hook(lambda g: g if g.dtype == torch.float64 else g * 0)


torch.nn.Conv2d.__init__ = init
