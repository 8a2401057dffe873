"""From a request to an artifact: choose, plan as data, execute, account for it.

May use `packages` and the rooms below it; knows neither `doctor` nor `locks`.
"""
