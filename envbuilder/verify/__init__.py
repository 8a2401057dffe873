"""Run the payload in an environment, validate its report from outside, store it and show it.

This package may import `builds` and everything below it, but it must not import `bundle`.
"""
