"""A build from beginning to end. Start reading here.

    choose → judge → lock → plan → fetch → execute → attest → deliver

Each stage takes a `Build` and returns it with what it decided or made. `prepare` decides and
downloads nothing, except sources that the lock has no wheels of: they decide the plan. `finish`
makes what was planned, unless exactly that exists. The order of the checks and their exit codes are
a contract: arguments and profile (2), host (3), lock (2), engine and tools (4), fetching and
building (1). Verifying (5) is up to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.builds.request import Build, Request
from envbuilder.builds.stages import (
    attest,
    choose,
    deliver,
    execute,
    fetch,
    judge,
    lock,
    plan,
    reuse,
)
from envbuilder.host import assumed, probe
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.project import environments, variants

if TYPE_CHECKING:
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


def prepare(request: Request, settings: Settings, progress: Progress, *, running: bool) -> Build:
    """Return a planned build, after all checks that precede a download.

    With `running`, commands will run in the result at once, so this host must fit. Otherwise the
    result may be used elsewhere: what cannot exist here is refused, and the rest is noted. A named
    target host must fit in any case.
    """
    return plan(lock(judged(request, settings, progress, running=running)))


def judged(request: Request, settings: Settings, progress: Progress, *, running: bool) -> Build:
    """Return a build of which profile and backend are decided, as by `prepare`."""
    return judge(choose(begin(request, settings, progress, running=running)))


def begin(request: Request, settings: Settings, progress: Progress, *, running: bool) -> Build:
    """Return a build of which the profile is known if it is named, and nothing else is decided."""
    library = variants.library(settings)
    if not running and settings.project and settings.definition:
        environments.require_paths(settings.definition, settings.environment, settings.project)
    profile = library.named(request.profile) if request.profile is not None else None
    elsewhere = assumed.is_assumed(request.target_host) and not running
    build = Build(
        request=request,
        settings=settings,
        progress=progress,
        library=library,
        host=assumed.find(request.target_host) if elsewhere else probe.host(),
        assumed=elsewhere,
        running=running or elsewhere,
    )
    if profile:
        build = replace(build, profile=profile)
        if profile.name != request.profile:
            title = FRAMEWORKS[profile.framework].title
            progress.note(f"profile {profile.name}: {request.profile} for {title}")
    if elsewhere:
        progress.note(f"note: {build.host.notes[0]}")
    return build


def finish(build: Build) -> Build:
    """Return the build with its result: what an earlier build made, else what this one makes."""
    build = reuse(build)
    if build.artifact is None:
        build = execute(fetch(build))
    return deliver(attest(build))
