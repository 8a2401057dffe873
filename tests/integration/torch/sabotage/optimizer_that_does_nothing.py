"""An optimizer whose steps change no weight."""

import torch

torch.optim.Adadelta.step = lambda self, closure=None: None
