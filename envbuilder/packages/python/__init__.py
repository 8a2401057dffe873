"""Wheels: their indexes, metadata and conflicts, and how uv resolves them."""
