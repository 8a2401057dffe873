"""Build an artifact from a request: choose a profile and a backend, then plan, build and attest.

This package may import `packages` and everything below it, but it must import neither `doctor` nor
`locks`.
"""
