"""Run the payload in an environment, validate its report externally, store it and display it.

May import `build` and the rooms below it, but not `bundle`.
"""
