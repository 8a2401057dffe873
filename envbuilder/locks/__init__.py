"""Make a lock, and check that everything it names is still available.

May use `packages` and the rooms below it; knows neither `build` nor `doctor`.
"""
