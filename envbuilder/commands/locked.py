"""Plan an environment to run in, and lock it first where a project has no current lock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.core.errors import Hint, InvalidError, UnlockedError, indented_proof

if TYPE_CHECKING:
    from envbuilder.builds.request import Planned, Request
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.locks.entries import Entry
    from envbuilder.project.variants import ReleaseOptions

_WRITE = Hint("Make the locks as a user who can write to the project's folder", ("lock",))
_NO = frozenset({"", "0", "false", "no"})


def prepare(request: Request, settings: Settings, progress: Progress) -> Planned:
    """Return the planned build of an environment that commands run in at once.

    A project's lock that is missing or stale is made, for the profile that fits this host. Raise
    `UnlockedError` instead with --locked, in CI, and where locks have to be signed.
    """
    build = pipeline.judge(pipeline.choose(request, settings, progress, running=True))
    name = build.profile.name
    signers = settings.configuration.signatures.locks
    try:
        return pipeline.plan(pipeline.lock(build))
    except UnlockedError as error:
        if request.locked or signers or os.environ.get("CI", "").lower() not in _NO:
            raise
        progress.note(f"{error.message}: it is made now; `envbuilder lock` makes those of all")
    _lock(name, settings, progress)
    # Named, so that what was decided is not printed again.
    named = replace(request, profile=name, backend=build.backend)
    return pipeline.prepare(named, settings, progress, running=True)


def _lock(name: str, settings: Settings, progress: Progress) -> None:
    """Make the lock of a project's environment for one profile.

    Raise `InvalidError` if that is not possible; the lock so far is kept then.
    """
    from envbuilder.commands import resolution
    from envbuilder.locks import entries, saving

    def listed(choosing: ReleaseOptions) -> list[Entry]:
        with progress.task("read what the project requires"):
            every = [*entries.entries(settings, name, choosing=choosing)]
        return [entry for entry in every if entry.environment == settings.environment]

    for outcome in resolution.solved(settings, listed, report=progress.note):
        if outcome.obstacle or outcome.lock is None:
            why = indented_proof(outcome.obstacle)
            raise InvalidError(f"{outcome.entry.label} cannot be locked: {why}", outcome.hints)
        saving.save({outcome.entry.path: outcome.lock}, _WRITE)
