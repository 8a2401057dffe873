"""Let the second build read the project's own files from copies, like everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from envbuilder.build import project_layer
from envbuilder.build.plan import Assemble, CopyProject, project_of
from envbuilder.core.errors import BuildError
from envbuilder.core.http import full_or_broken

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.plan import Plan, Step

_SHOWN = 10


def reading(first: Plan, second: Plan, folder: Path) -> Plan:
    """Return the second plan with the project's files read from `folder`, where they are copied.

    Raise `BuildError` with the names of the files that are not those of the first plan.
    """
    before, after = project_of(first), project_of(second)
    if before is None or after is None:
        return second
    if changed := sorted({file.path for file in {*before.files} ^ {*after.files}}):
        more = len(changed) - _SHOWN
        others = f" and {more} more" if more > 0 else ""
        raise BuildError(
            f"the project's files changed between the two builds: {', '.join(changed[:_SHOWN])}"
            f"{others}",
            "Run the same command again.",
        )
    try:
        project_layer.copy(after, folder)
    except OSError as error:
        raise full_or_broken(error, folder) from error

    def moved(step: Step) -> Step:
        if not isinstance(step, Assemble | CopyProject) or step.project is UNSET:
            return step
        return replace(step, project=replace(step.project, folder=str(folder)))

    return replace(second, steps=tuple(map(moved, second.steps)))
