"""Several devices: their ranks, the agreement of these, and their shares of the machine."""

from __future__ import annotations
