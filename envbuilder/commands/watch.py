"""Run a command in its environment, and report what its training did and on which device.

A hook observes the command's interpreters from inside, while threads of this process measure the
machine. The hook is a folder of files that can be read inside a container. The folder is created
for a single command and removed afterwards. It is not part of the environment.
"""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder import __version__
from envbuilder.builds import conventions, project_folder
from envbuilder.builds.access import own_folder
from envbuilder.builds.backends import container
from envbuilder.core import console, process, text
from envbuilder.core.errors import (
    VERIFY_FAILED,
    printable,
    redacted_words,
)
from envbuilder.core.publishable import git
from envbuilder.core.settings import DEFAULT
from envbuilder.payload.machine import contention
from envbuilder.profiles.backends import makes_image
from envbuilder.verify.report import regression
from envbuilder.watch import judge, model, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envbuilder.builds.access import Access
    from envbuilder.builds.request import Built

_INSIDE = Path(model.__file__).with_name("inside")
_LEFT_OUT = {"__pycache__", "__init__.py"}
_SECONDS = 2.0
"""Interval in seconds at which the GPUs are read. Their drivers report averages over about one
second."""


def places(output: Path | None, html: Path | None) -> tuple[console.Place, console.Place]:
    """Return where to write a report and its HTML page.

    Raise `InvalidError` if a path is unusable.
    """
    file = console.Place("--output", output, model.is_report)
    page = console.Place("--html", html, console.is_page)
    console.require_places(file, page)
    return file, page


class Watching(Struct, frozen=True, kw_only=True):
    """The options for watching a command, including where to write the report."""

    device: str | None
    file: console.Place
    page: console.Place
    earlier: model.Watched | None
    """The earlier report with which to compare the new one. None if there is no comparison."""

    def run(self, build: Built, words: Sequence[str], access: Access) -> int:
        """Run the command in a build's environment, and return the exit code to use."""
        settings = build.settings
        environment = build.environment
        project = settings.project if settings.definition is not None else None
        folder = container.project_folder(project, Path.cwd())
        running = Running(in_container=makes_image(build.backend))
        started = text.stamp_now()
        commit = source(folder, settings.environment)
        prefix = environment.plan.artifact.ref
        owner: tuple[int, int] | None = None
        if makes_image(build.backend):
            prefix = conventions.PREFIX
            if os.getuid() == 0:
                owner = container.user_in(folder.stat(), os.getuid(), os.getgid())
        runs = project_folder.runs_folder(settings)
        with Session.laid(runs, prefix, owner) as session:
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
                command=tuple(word[:1000] for word in redacted_words(words[:200])),
                profile=build.profile.name,
                backend=build.backend,
                fingerprint=environment.plan.fingerprint,
                lock=environment.plan.lock,
                project=commit,
                requested=self.device or build.profile.expects.device,
                exit_code=exit_code,
                seconds=running.seconds,
                machine=running.machine,
                processes=processes,
                left_out=left_out,
            )
        )
        self._deliver(model.readable(watched))
        if watched.exit_code == 0 and watched.on_device is False:
            return VERIFY_FAILED
        return watched.exit_code

    def _deliver(self, watched: model.Watched) -> None:
        """Write the report and its page, and print the report.

        If the report or the page cannot be written, print a warning. The exit code does not change.
        """
        changed = changes(watched, self.earlier) if self.earlier else ()
        errors = console.deliver(
            (
                ("report", lambda: self.file.write(lambda: model.encoded(watched))),
                ("page", lambda: self.page.write(lambda: show.page(watched))),
            ),
            lambda: show.show(watched, changed, console.rich_console(stderr=True)),
        )
        for failure in errors:
            console.message(f"warning: {failure.message}")


def changes(watched: model.Watched, earlier: model.Watched) -> list[str]:
    """Return sentences that describe how a training run differs from an earlier one.

    Two speeds count as equal if they differ by no more than a factor of `MAX_SLOWDOWN`.
    """
    sentences = []
    now = judge.speed(watched)
    then = judge.speed(earlier)
    if now and then and now[1] == then[1]:
        word = "about as fast"
        if now[0] > regression.MAX_SLOWDOWN * then[0]:
            word = "faster"
        elif now[0] * regression.MAX_SLOWDOWN < then[0]:
            word = "slower"
        unit = f"{now[1]}/s"
        sentences.append(
            f"{word}: {text.amount(now[0])} {unit}, before {text.amount(then[0])} {unit}"
        )
    for name, value in (
        ("device", judge.device),
        ("dtype", judge.dtype),
        ("framework", judge.framework),
    ):
        if value(watched) != value(earlier):
            sentences.append(f"{name}: {value(watched)}, before {value(earlier)}")
    kinds = [finding.kind for finding in watched.findings]
    before = [finding.kind for finding in earlier.findings]
    sentences += [f"new: {printable(kind)}" for kind in kinds if kind not in before]
    sentences += [f"gone: {printable(kind)}" for kind in before if kind not in kinds]
    return sentences


# What runs beside the command


class Session:
    """The temporary folder that is created to watch a single command.

    It contains the hook, and the files that the command's processes write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hook = folder / "hook"
        self._out = folder / "out"

    @classmethod
    @contextmanager
    def laid(
        cls, above: Path, environment: str = "", owner: tuple[int, int] | None = None
    ) -> Iterator[Session]:
        """Write the hook to a new folder in `above`, yield the session, and then remove the folder.

        `environment` is the path of the environment's folder as the command sees it. If the path is
        empty, the hook works in any environment. `owner` is the user and group as which the command
        runs, if they differ from those of this process. Raise `InvalidError` if the folder cannot
        be written.
        """
        with project_folder.temporary(above) as folder:
            session = cls(folder)
            with project_folder.writing(folder):
                session._out.mkdir()
                shutil.copytree(_INSIDE, session.hook, ignore=lambda *_: _LEFT_OUT)
                if environment:
                    (session.hook / "environment").write_bytes(os.fsencode(environment))
                project_folder.open_to_all(folder)
                if owner:
                    os.chown(session._out, *owner)
            yield session

    def parts(self) -> tuple[tuple[model.Observed, ...], int]:
        """Return the data that the processes wrote, and the number of files that were skipped.

        The data is sorted by rank (lowest first), then by steps and duration (largest first).
        """
        paths = sorted(self._out.glob("*.json"), key=lambda path: -path.lstat().st_size)
        whole = []
        for path in paths[: model.MOST_PROCESSES]:
            process = model.part(path)
            if process:
                whole.append(process)
        whole.sort(key=lambda p: (p.rank or 0, -(p.steps or 0), -p.seconds))
        return tuple(whole), len(paths) - len(whole)


class Running:
    """A command that runs in the foreground, with this process's input, output and signals."""

    seconds: float
    """Duration of the command in seconds, set when the command has ended."""
    machine: model.Machine
    """Measurements of this machine while the command was running, set when the command has
    ended."""

    def __init__(self, *, in_container: bool) -> None:
        self._in_container = in_container

    def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> int:
        """Run a command, which receives all signals, and return its exit code when it exits."""
        with self.counted():
            return process.accompany(argv, variables)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Measure the load of this machine while the command runs in the block."""
        before = contention.read()
        of_children = _children_seconds()
        readings = _Readings()
        done = threading.Event()
        thread = threading.Thread(target=_read_gpus, args=(readings, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(_SECONDS)
        counted = contention.between(before, contention.read(), None)
        other = counted["other_seconds"]
        used = _children_seconds() - of_children
        # A container's processes are children of its engine.
        is_known = other is not None and not self._in_container
        self.seconds = counted["seconds"]
        self.machine = model.Machine(
            cpus=counted["cpus"],
            quota=counted["quota"],
            throttled_seconds=counted["throttled_seconds"],
            other_seconds=max(0.0, other - used) if is_known else None,
            gpus=tuple(_gpu(*key, *readings[key]) for key in sorted(readings)[: model.MOST_ROWS]),
        )


def _gpu(
    index: int, name: str, rates: float, times: float, milliwatts: float, counts: float
) -> model.Gpu:
    """Return a GPU with its mean utilization and power.

    `rates` is the sum of `times` readings of the utilization in percent. `milliwatts` is the sum of
    `counts` readings of the power.
    """
    return model.Gpu(
        index=index,
        name=name[:200],
        utilization=rates / 100 / times if times else None,
        watts=milliwatts / 1000 / counts if counts else None,
    )


def _children_seconds() -> float:
    """Return the total CPU time in seconds of all child processes that have exited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_Readings = dict[tuple[int, str], list[float]]
"""Index and name of a GPU → four numbers: the sum and the count of its utilization readings in
percent, and the sum and the count of its power readings in milliwatts."""


def _read_gpus(readings: _Readings, done: threading.Event) -> None:
    """Read the utilization and power of NVIDIA GPUs repeatedly until `done` is set.

    Add the values to `readings`. Without NVIDIA's driver or without `nvidia-ml-py`, read nothing.
    """
    try:
        library: Any = importlib.import_module("pynvml")
        library.nvmlInit()
        gpus = list(map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount())))
        while not done.wait(_SECONDS):
            for index, gpu in enumerate(gpus):
                name = library.nvmlDeviceGetName(gpu)
                key = index, name if isinstance(name, str) else name.decode()
                sums = readings.setdefault(key, [0.0] * 4)
                with suppress(library.NVMLError):  # not counted by this one
                    sums[0] += library.nvmlDeviceGetUtilizationRates(gpu).gpu
                    sums[1] += 1
                with suppress(library.NVMLError):
                    sums[2] += library.nvmlDeviceGetPowerUsage(gpu)
                    sums[3] += 1
        library.nvmlShutdown()
    except Exception:  # noqa: BLE001 (the library defines its errors at run time)
        return


def source(project: Path, environment: str = DEFAULT) -> model.Source:
    """Return the commit of the project's files, and whether the files are unchanged since then.

    The commit is None if git is missing. The file system monitor that may be configured in the
    user's clone is turned off. A filter that the clone's configuration specifies can still run.
    This is acceptable because the project's code runs right afterwards anyway, and because the
    clone must belong to the user.
    """
    trusted = ("-c", "core.fsmonitor=false", "-c", f"safe.directory={project}")
    clones = (folder for folder in (project, *project.parents) if (folder / ".git").exists())
    clone = next(clones, project)
    commit = git(clone, *trusted, "rev-parse", "HEAD")
    state = None
    if commit:
        state = git(clone, *trusted, "status", "--porcelain", "--", str(project))
    return model.Source(
        environment="" if environment == DEFAULT else environment,
        commit=commit.strip() if commit else None,
        is_clean=None if state is None else not state,
    )
