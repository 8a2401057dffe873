"""Networks that cannot be put into evaluation mode: dropout stays on."""

import torch

torch.nn.Module.eval = lambda self: self
