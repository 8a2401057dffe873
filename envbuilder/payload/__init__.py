"""The program that runs inside an environment: it trains on MNIST there and reports the results.

The same modules work as ``envbuilder.payload`` from a checkout and as ``payload`` inside the
zipapp. They need only the standard library and torch 1.13 or newer, in Python 3.8 syntax, because
the interpreter may be any environment's. torch is imported inside functions only, so that the
entrypoint and the core can import any of these modules in milliseconds.
"""

from __future__ import annotations

PACKAGE = __name__
"""The package's name as it was started."""
SCHEMA = 2
"""Version of the report that ``verify`` writes; every change that breaks readers raises it."""
