"""The date jumps about and runs backwards, as where a machine's clock is being set."""

import time

real = time.time
time.time = lambda: 2e9 - 100 * real()
