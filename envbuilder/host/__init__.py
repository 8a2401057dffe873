"""Describe a machine as data: this machine, a recorded tree, or a machine described in a file.

This package may import `containers`, `payload` and `core`.
"""
