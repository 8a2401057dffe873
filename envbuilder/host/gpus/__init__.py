"""Detect each vendor's GPUs, and the obstacles that prevent them from working."""
