"""Create lock files, and compare them with their profiles and with earlier locks.

May import `packages` and the rooms below it, but neither `build` nor `doctor`.
"""
