"""Make locks, and compare them with their profiles and with earlier ones.

May use `packages` and the rooms below it; knows neither `build` nor `doctor`.
"""
