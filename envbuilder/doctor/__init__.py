"""Diagnose this host and the Python environment in use, and fix their problems.

A host problem is anything that blocks, degrades or slows the host. This package may import
`packages` and everything below it, but neither `build` nor `locks`.
"""
