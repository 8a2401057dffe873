"""Progress that nobody hears."""

from __future__ import annotations

from envbuilder.core.console import PlainProgress

SILENT = PlainProgress(lambda line: None)
