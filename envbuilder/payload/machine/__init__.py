"""The machine: device, clocks, memory, threads, and facts about the environment on it."""

from __future__ import annotations
