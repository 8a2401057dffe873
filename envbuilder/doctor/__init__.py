"""Diagnose this host and the Python environment in use, and fix their problems.

A problem of the host blocks, degrades or slows it. This package may import `packages` and
everything below it, but neither `build` nor `locks`.
"""
