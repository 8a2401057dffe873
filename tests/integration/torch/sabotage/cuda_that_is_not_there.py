"""A CPU build of torch that calls itself a CUDA build and says that a device is available."""

import torch

torch.__version__ = "2.14.1+cu130"
torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: True
