"""Detect each vendor's GPUs, and what keeps them from working."""
