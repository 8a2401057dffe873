"""Run the payload in an environment, judge its report from outside, keep it and show it.

May use `build` and the rooms below it; does not know `bundle`.
"""
