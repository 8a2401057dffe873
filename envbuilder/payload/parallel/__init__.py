"""Training on several devices: ranks, checks of their results, and their shares of the machine."""

from __future__ import annotations
