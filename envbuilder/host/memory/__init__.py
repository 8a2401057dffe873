"""Detect main memory: how much, how fast, on how many channels."""
