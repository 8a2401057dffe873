"""A CPU build of torch that calls itself a ROCm build and says that a GPU is available."""

import torch

torch.__version__ = "2.14.0+rocm7.2"
torch.version.hip = "7.2.26015"
torch.cuda.is_available = lambda: True
