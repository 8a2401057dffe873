"""What runs inside an environment: it trains MNIST there and reports what really happened.

The same modules work as ``envbuilder.payload`` from a checkout and as ``payload`` inside the
zipapp. They need the standard library and torch 2.5 or newer, in Python 3.9 syntax, because they
run in anybody's interpreter. torch is imported inside functions only, so that the entrypoint and
the core can import any of these modules in milliseconds.
"""

from __future__ import annotations

PACKAGE = __name__
"""The package's name as it was started."""
SCHEMA = 1
"""Version of the report that ``verify`` writes; a change that breaks readers raises it."""
