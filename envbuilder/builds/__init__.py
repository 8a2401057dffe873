"""Build an artifact from a request: choose profile and backend, plan as data, execute, attest.

May import `packages` and everything below it; knows neither `doctor` nor `locks`.
"""
