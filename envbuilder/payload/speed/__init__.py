"""Speed of the device: compute rates, bandwidth, latency."""

from __future__ import annotations
