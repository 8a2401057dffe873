"""Diagnose what blocks, degrades or slows this host, judge the environment in use, and fix both.

The code may import `packages` and the rooms below it, but neither `build` nor `locks`.
"""
