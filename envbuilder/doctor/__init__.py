"""Diagnose what blocks, degrades or slows this host, and fix it.

May import `packages` and the rooms below it, but neither `build` nor `locks`.
"""
