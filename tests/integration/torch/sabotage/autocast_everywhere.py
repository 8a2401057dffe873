"""Autocast to bfloat16, switched on for the whole process."""

import torch

torch.set_autocast_enabled("cpu", True)
