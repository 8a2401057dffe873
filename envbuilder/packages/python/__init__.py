"""Wheels: indexes, uv, metadata, claims, the files that installed wheels share."""
