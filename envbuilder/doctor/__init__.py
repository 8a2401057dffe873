"""Diagnose what blocks, degrades or slows this host, judge the environment in use, and fix both.

This package may import `packages` and everything below it, but neither `build` nor `locks`.
"""
