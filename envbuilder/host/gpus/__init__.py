"""Detect each vendor's GPUs, and the obstacles that keep the GPUs from working."""
