"""MNIST, the network, the training loop, and the blind test of the result."""

from __future__ import annotations
