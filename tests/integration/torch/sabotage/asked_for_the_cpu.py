"""The CPU is asked for on the way: all that the payload does and says of it is right."""

import sys

for number, word in enumerate(sys.argv[:-1]):
    if word == "--device":
        sys.argv[number + 1] = "cpu"
