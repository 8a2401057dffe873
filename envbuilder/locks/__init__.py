"""Create lock files, and compare them with their profiles and with earlier locks.

This package may import `packages` and everything below it, but it must import neither `builds` nor
`doctor`.
"""
