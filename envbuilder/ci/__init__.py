"""The matrix of what CI can build and verify, and the workflows that do it.

May use `locks` and the rooms below it; knows neither `build` nor `verify`, which workflows run as
commands.
"""
