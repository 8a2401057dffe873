"""The project's own files in two builds: copied for the second, and compared with earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from envbuilder.build import project_layer
from envbuilder.build.image import project_record
from envbuilder.build.plan import Assemble, CopyProject, project_of
from envbuilder.build.reproduce.differences import Built
from envbuilder.core.errors import BuildError
from envbuilder.core.files import full_or_broken

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.build.plan import Plan, Step
    from envbuilder.core.settings import Settings
    from envbuilder.project.image_files import ImageFile

_SHOWN = 10


def reading(first: Plan, second: Plan, folder: Path) -> Plan:
    """Return the second plan with the project's files read from `folder`, where they are copied.

    Raise `BuildError` with the names of the files that are not those of the first plan.
    """
    before, after = project_of(first), project_of(second)
    if before is None or after is None:
        return second
    if changed := _changed(before.files, after.files):
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


def _changed(before: Sequence[ImageFile], after: Sequence[ImageFile]) -> tuple[str, ...]:
    """Return the paths whose file is another one, or in one of the two alone."""
    return tuple(sorted({file.path for file in {*before} ^ {*after}}))


def built(plan: Plan, settings: Settings) -> Built | None:
    """Return the last image that `build` made of the plan's project, if there is one."""
    project, last = project_of(plan), project_record.newest(plan, settings)
    if project is None or last is None:
        return None
    image, contained = last
    return Built(
        ref=image.ref, digest=image.digest, changed=_changed(contained.files, project.files)
    )
