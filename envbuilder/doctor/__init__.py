"""What blocks, degrades or slows this host, each with its fix.

May use `packages` and the rooms below it; knows neither `build` nor `locks`.
"""
