"""An accelerator that is there until it is asked to do something."""

import torch

torch.backends.mps.is_built = torch.backends.mps.is_available = lambda: True
