"""Clocks that agree with each other, and run 2 % too slowly: less than events may be late."""

import time

real = {name: getattr(time, name) for name in ("perf_counter", "monotonic", "time")}
began = {name: clock() for name, clock in real.items()}
for name, clock in real.items():
    setattr(time, name, lambda name=name, clock=clock: began[name] + (clock() - began[name]) / 1.02)
