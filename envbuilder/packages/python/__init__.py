"""Wheels: indexes, resolving with uv, metadata, claims, conflicts between installed files."""
