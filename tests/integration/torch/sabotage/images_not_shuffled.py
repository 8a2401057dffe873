"""The order of the files in every epoch."""

import torch

torch.randperm = lambda count, *more, **options: torch.arange(count)
