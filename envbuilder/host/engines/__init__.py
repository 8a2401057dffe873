"""Detect container engines on this machine, and the devices they can pass to containers."""
