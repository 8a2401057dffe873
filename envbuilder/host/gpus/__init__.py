"""Detect each vendor's GPUs, and the obstacles that keep them from working."""
