"""Numerical correctness: arithmetic against float64, gradients, precision, compilers, kernels."""

from __future__ import annotations
