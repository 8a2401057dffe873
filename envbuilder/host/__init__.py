"""Describe a machine as data.

The machine is this one, one recorded as a tree of files, or one described in a file. This package
may import `containers`, `payload` and `core`.
"""
