"""Where to train."""

import torch


def device() -> torch.device:
    """Return the accelerator that PyTorch sees (CUDA and ROCm, XPU, MPS), else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")
