"""Run the payload in an environment, then validate, store and show its report.

This package may import `builds` and everything below it, but it must not import `bundle`.
"""
