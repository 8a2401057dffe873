"""Numerical correctness: arithmetic compared with float64, gradients, precision, compilers."""

from __future__ import annotations
