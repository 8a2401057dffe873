"""Run a command beside this process, and deliver a report of what its training did where."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder import __version__
from envbuilder.builds import conventions, project_folder
from envbuilder.builds.access import own_folder
from envbuilder.builds.backends import container
from envbuilder.core import console, results, text
from envbuilder.core.errors import VERIFY_FAILED, EnvbuilderError
from envbuilder.profiles.backends import makes_image
from envbuilder.watch import history, judge, model, show, supervise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.builds.access import Access
    from envbuilder.builds.request import Build

LAST = "last"


def named(against: str | None) -> model.Watched | None:
    """Return the earlier report of that path, before anything is built; None for the last one."""
    return None if against is None or against == LAST else model.read(Path(against))


def places(output: Path | None, html: Path | None) -> tuple[results.Place, results.Place]:
    """Return where a report and its page go; raise `InvalidError` if they cannot."""
    file = results.Place("--output", output, model.is_report)
    page = results.Place("--html", html, results.is_page)
    results.require(file, page)
    return file, page


class Watching(Struct, frozen=True, kw_only=True):
    """How a command is watched, and where its report goes."""

    device: str | None = None
    file: results.Place = results.Place("--output", None, model.is_report)
    page: results.Place = results.Place("--html", None, results.is_page)
    against: str | None = None
    earlier: model.Watched | None = None
    """The report that `against` names, unless that is the last one."""

    def run(self, build: Build, words: Sequence[str], access: Access) -> int:
        """Run the command in a finished build's environment; return the exit code to end with."""
        settings = build.settings
        environment = build.environment
        project = settings.project if settings.definition is not None else None
        folder = container.project_folder(project, Path.cwd())
        running = supervise.Running(in_container=makes_image(build.backend))
        started = text.stamp_now()
        source = supervise.source(folder)
        prefix = environment.plan.artifact.ref
        owner: tuple[int, int] | None = None
        if makes_image(build.backend):
            prefix = conventions.PREFIX
            if os.getuid() == 0:
                owner = container.user_in(folder.stat(), os.getuid(), os.getgid())
        runs = project_folder.runs_folder(settings)
        with supervise.Session.laid(runs, prefix, owner) as session:
            seen = own_folder(session.folder, "watch", writable=True)
            access = replace(
                access,
                python_path=(session.hook, *access.python_path),
                own_folders=(seen, *access.own_folders),
            )
            exit_code = environment.become(words, os.environ, access, running.start)
            processes, left_out = session.parts()
        watched = judge.judged(
            model.Watched(
                envbuilder=__version__,
                time=started,
                host=socket.gethostname()[:200],
                command=tuple(word[:1000] for word in text.redacted_words(words[:200])),
                profile=build.profile.name,
                backend=build.backend,
                fingerprint=environment.plan.fingerprint,
                lock=environment.plan.lock,
                project=source,
                requested=self.device or build.profile.expects.device,
                expected_kernels=build.profile.expects.kernels,
                exit_code=exit_code,
                seconds=running.seconds,
                machine=running.machine,
                processes=processes,
                left_out=left_out,
            )
        )
        self._deliver(model.readable(watched), settings.watches_dir)
        if watched.exit_code == 0 and watched.on_device is False:
            return VERIFY_FAILED
        return watched.exit_code

    def _deliver(self, watched: model.Watched, folder: Path) -> None:
        """Keep and show the report; what cannot be written is said, and changes no exit code."""
        earlier = self.earlier
        errors: list[EnvbuilderError] = []
        try:
            if self.against == LAST:
                earlier = history.last(folder, watched)
                if earlier is None:
                    said = "note: --against last: there is no earlier report of it"
                    console.progress().note(said)
        except EnvbuilderError as error:
            errors.append(error)
        changes = history.changes(watched, earlier) if earlier else ()
        errors += results.deliver(
            (
                ("report", lambda: history.keep(watched, folder)),
                ("report", lambda: self.file.write(lambda: model.encoded(watched))),
                ("page", lambda: self.page.write(lambda: show.page(watched))),
            ),
            lambda: show.show(watched, changes),
        )
        for failure in errors:
            console.message(f"warning: {failure.message}")
