"""How fast the device is: rates, bandwidth, latency."""

from __future__ import annotations
