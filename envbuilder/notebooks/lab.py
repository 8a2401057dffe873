"""JupyterLab's environment: from a lock that envbuilder brings, never part of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build import pipeline
from envbuilder.build.backends import venv
from envbuilder.build.request import Build, Request
from envbuilder.core import resources
from envbuilder.core.project_file import DEFAULT
from envbuilder.profiles.library import Library

if TYPE_CHECKING:
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host

NAME = "jupyter"


def library() -> Library:
    """Return the profiles of envbuilder's own tools; a user's profiles cannot replace them.

    Their locks come with envbuilder, as its code does: keys of the user's are not required of them.
    """
    shipped = resources.profiles_dir()
    return Library((shipped / "tools", shipped))


def prefix(host: Host, settings: Settings, progress: Progress) -> Path:
    """Build the environment if it is missing, and return its folder."""
    tools = library()
    profile = tools.profile(NAME)
    # It is of no project, whose link to its own environment it must not take over.
    settings = replace(settings, project=None, definition=None, environment=DEFAULT)
    build = Build(
        request=Request(),
        settings=settings,
        progress=progress,
        library=tools,
        host=host,
        running=True,
        profile=profile,
        backend="venv",
        lock=tools.usable_lock(profile),
    )
    product = venv.prepare(build)
    done = pipeline.finish(replace(build, product=product, plan=product.plan))
    return Path(done.result.artifact.ref)
