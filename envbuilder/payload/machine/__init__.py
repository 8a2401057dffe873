"""The machine (device, clocks, memory, threads) and facts about the environment."""

from __future__ import annotations
