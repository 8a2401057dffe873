"""The device, its clock, memory and threads, and what the environment consists of."""

from __future__ import annotations
