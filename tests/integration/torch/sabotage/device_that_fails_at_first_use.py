"""An accelerator that is there until it is asked to do something."""

import torch

torch.backends.mps.is_built = torch.backends.mps.is_available = lambda: True
torch.__version__ = torch.__version__.partition("+")[0]  # as Macs' wheels have it, without a build
