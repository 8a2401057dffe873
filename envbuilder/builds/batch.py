"""Build several profiles in one command: one store, one layer cache, failures apart.

All of them are prepared before anything is downloaded. Each has a thread, and takes turns with the
others (`execute.Sharing`). An interruption ends all of them.
"""

from __future__ import annotations

import shutil
import threading
from concurrent import futures
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.builds.execute import Sharing
from envbuilder.core import console, process
from envbuilder.core.errors import (
    BUILD_FAILED,
    INVALID,
    NOTHING_FITS,
    TOOL_MISSING,
    VERIFY_FAILED,
    BuildError,
    EnvbuilderError,
)
from envbuilder.packages.store import Room, require_space
from envbuilder.profiles.backends import makes_image
from envbuilder.project import variants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.builds.plan import BuildResult
    from envbuilder.builds.request import Build, Request
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File

_ORDER = (INVALID, NOTHING_FITS, TOOL_MISSING, BUILD_FAILED, VERIFY_FAILED)
"""Exit codes, worst first: in the order of the checks."""

_CLEANUP_SECONDS = 1.2
"""How long interrupted builds may clean up, within what `core.stopping` gives this process."""


class Outcome(NamedTuple):
    """What came of a profile so far: a build, once it is planned, finished or not; or an error."""

    profile: str
    build: Build | None = None
    error: EnvbuilderError | None = None

    @property
    def result(self) -> BuildResult | None:
        """The result of a finished build."""
        return self.build.result if self.build and not self.error else None


def prepare(
    names: Sequence[str],
    request: Request,
    settings: Settings,
    progress: console.Progress,
    check: Callable[[Build], None] = lambda build: None,
) -> tuple[Outcome, ...]:
    """Plan the build of each profile; `check` raises an error for one that cannot be used.

    Raises `InvalidError` if a profile is unknown or wrong; other errors are of one profile.
    """
    library = variants.library(settings)
    for name in names:
        library.profile(name)
    outcomes = []
    for name in names:
        named = replace(request, profile=name)
        lines = _lines(name, progress.note)
        try:
            build = pipeline.prepare(named, settings, lines, running=False)
            check(build)
        except EnvbuilderError as error:
            outcomes.append(Outcome(name, error=error))
        else:
            outcomes.append(Outcome(name, build))
    return tuple(outcomes)


def finish(
    planned: Sequence[Outcome], settings: Settings, progress: console.Progress
) -> tuple[Outcome, ...]:
    """Build what was planned, side by side; one that fails does not stop the others."""
    planned = _with_space(planned, settings)
    builds = {o.profile: o.build for o in planned if o.build and not o.error}
    if not builds:
        return tuple(planned)
    sharing = Sharing()
    stopping = threading.Event()
    threads = set[int]()
    unfinished = {build.plan.workdir for build in builds.values()}

    def stop() -> None:
        # In this order: what is interrupted and cleans up must not be interrupted again.
        process.interrupt(tuple(threads))
        stopping.set()
        process.kill(process.running())

    def run(name: str, build: Build) -> Outcome:
        build = replace(build, progress=_lines(name, progress.note, stopping))
        try:
            with process.working(threads):
                return Outcome(name, pipeline.finish(build, sharing))
        except EnvbuilderError as error:
            return Outcome(name, build, error)
        except Exception as error:  # noqa: BLE001 (a defect in one build must not end the others)
            message = f"unexpected {type(error).__name__}: {error}"
            hint = f"To see where it happened, build it alone: --profile {name} --debug"
            return Outcome(name, build, BuildError(message, hint))
        finally:
            unfinished.discard(build.plan.workdir)

    try:
        with (
            progress.task(f"build {', '.join(builds)}", len(builds)) as task,
            process.pool(len(builds), stop, _CLEANUP_SECONDS) as pool,
        ):
            jobs = {name: pool.submit(run, name, build) for name, build in builds.items()}
            for job in futures.as_completed(jobs.values()):
                job.result()
                task.advance(1)
    except BaseException:
        # Their threads wait for something, such as an engine, and end with this process.
        for folder in tuple(unfinished):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return tuple(jobs[o.profile].result() if o.profile in jobs else o for o in planned)


def _with_space(planned: Sequence[Outcome], settings: Settings) -> tuple[Outcome, ...]:
    """Return the outcomes: if the disks lack space for all that is missing, none of it is built.

    What two images have in common is downloaded and stored once; venvs do not share.
    """
    missing = {
        name: build.plan
        for name, build, _ in planned
        if build and (build.request.rebuild or build.product.existing() is None)
    }
    files: dict[str, File] = {}
    rooms: list[Room] = []
    for plan in missing.values():
        counted = [f for f in plan.files if makes_image(plan.backend) and f.sha256 in files]
        share = 1 - sum(f.room for f in counted) / (sum(f.room for f in plan.files) or 1)
        rooms += (replace(room, bytes=int(room.bytes * share)) for room in plan.room)
        files |= {f.sha256: f for f in plan.files}
    try:
        require_space(files.values(), rooms, settings)
    except BuildError as error:
        return tuple(o._replace(error=error) if o.profile in missing else o for o in planned)
    return tuple(planned)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code of the worst outcome: that of the earliest check that failed."""
    codes = {outcome.error.exit_code for outcome in outcomes if outcome.error}
    return min(codes, key=_ORDER.index) if codes else 0


def _lines(
    name: str, note: Callable[[str], None], stopping: threading.Event | None = None
) -> console.Progress:
    """Return one build's progress, as lines that begin with its profile.

    Once all builds are to stop, reporting anything ends the thread that does, such as a download's.
    """

    def go_on() -> None:
        if stopping and stopping.is_set():
            raise KeyboardInterrupt

    return console.PlainProgress(lambda line: note(f"{name}: {line}"), go_on)
