"""All clocks inside stand still for most of the first epoch, the kernel's count included."""

import sys

import sabotage_stopping
from sabotage_stopping import STOPPED

clock = sys.modules["payload.clock"]
real = clock._text
clock._text = lambda path: str(float(real(path).split()[0]) - sabotage_stopping.hidden)
assert STOPPED
