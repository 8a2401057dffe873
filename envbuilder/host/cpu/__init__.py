"""Detect the processor, and how much of it this process may use."""
