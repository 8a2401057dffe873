"""Detect the GPUs of each vendor, and what keeps them from working."""
