"""Create lock files, and compare them with their profiles and with earlier locks.

This package may import `packages` and everything below it, but must not import `builds` or
`doctor`.
"""
