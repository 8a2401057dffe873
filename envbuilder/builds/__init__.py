"""Build an artifact from a request: choose a profile and a backend, plan, execute and attest.

This package may import `packages` and everything below it, but neither `doctor` nor `locks`.
"""
