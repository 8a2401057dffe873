"""MNIST, the network, the training loop, and the blind test of the trained network."""

from __future__ import annotations
