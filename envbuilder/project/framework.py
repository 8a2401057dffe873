"""Names of the framework's packages, which come from the hardware's profile, never from a user."""

from __future__ import annotations

TORCH = ("torch", "torchvision", "torchaudio")
"""PyTorch and its companions as distributions (PyPI), in normalised form."""
