"""The clock that times the work runs backwards."""

import time

real = time.perf_counter
start = time.perf_counter()
time.perf_counter = lambda: 2 * start - real()
