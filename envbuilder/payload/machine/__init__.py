"""The machine (its device, clocks, memory and threads), and facts about the environment."""

from __future__ import annotations
