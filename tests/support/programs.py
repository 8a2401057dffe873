"""Programs that are pretended to have run."""

from __future__ import annotations

from envbuilder.core.process import Completed


def completed(returncode: int = 0, stdout: str = "", stderr: str = "") -> Completed:
    """What `process.run` returns of a program that ended like this."""
    return Completed(argv=(), returncode=returncode, stdout=stdout, stderr=stderr, seconds=1.0)
