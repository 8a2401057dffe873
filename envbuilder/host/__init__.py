"""Describe a machine as data: this one, a recorded tree, or one described by another machine.

May import `containers`, `payload` and `core`.
"""
