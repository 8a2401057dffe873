"""Make a lock, and find out whether all it names can still be had.

May use `packages` and the rooms below it; knows neither `build` nor `doctor`.
"""
