"""MNIST, the network, the training loop, and the blind test of what was learned."""

from __future__ import annotations
