"""Prepare a request as the commands do that run something, or only build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.build import workflow

if TYPE_CHECKING:
    from envbuilder.build.request import Request
    from envbuilder.build.workflow import Prepared
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


def prepare(request: Request, settings: Settings, progress: Progress, *, running: bool) -> Prepared:
    """Prepare for running on this host, or for building alone."""
    if running:
        return workflow.prepare_to_run(request, settings, progress)[0]
    return workflow.prepare_to_build(request, settings, progress)
