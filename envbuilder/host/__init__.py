"""Describe a machine as data.

The machine is either the current one, one that was recorded as a tree of files, or one that is
described in a single file. This package may import `containers`, `payload` and `core`.
"""
