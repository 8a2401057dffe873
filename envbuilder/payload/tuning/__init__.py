"""One trial of a setting, and the survey of what can be set here."""

from __future__ import annotations
