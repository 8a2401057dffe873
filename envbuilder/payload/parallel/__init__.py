"""Several devices: ranks, what they agree on, and their shares of the work."""

from __future__ import annotations
