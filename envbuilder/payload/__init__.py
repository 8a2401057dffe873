"""The program that runs inside an environment, trains on MNIST and reports the results.

The same modules work as ``envbuilder.payload`` from a checkout and as ``payload`` inside the
zipapp. They need only the standard library and torch 1.13 or newer. They are written in Python 3.8
syntax, because the environment may have any interpreter from 3.8 on. torch is imported only inside
functions, so that the entrypoint and the core can import any of these modules in milliseconds.
"""

from __future__ import annotations

PACKAGE = __name__
"""The package's name as it was started."""
SCHEMA = 2
"""Version of the report that ``verify`` writes; every change that breaks readers raises it."""
