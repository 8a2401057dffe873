"""Run the payload in an environment, validate its report from outside, store it and show it.

This package may import `build` and the rooms below it, but not `bundle`.
"""
