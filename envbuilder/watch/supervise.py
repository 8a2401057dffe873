"""Run a command with a hook in its interpreters, and collect what they and this machine saw.

The hook is a folder of files within the project, where a container sees it, too. It belongs to this
one command and is removed afterwards: the environment itself has no part of it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envbuilder.builds import project_folder
from envbuilder.core import process
from envbuilder.payload.machine import contention
from envbuilder.project.repository import git
from envbuilder.watch import model

_INSIDE = Path(__file__).with_name("inside")
_LEFT_OUT = {"__pycache__", "__init__.py"}
_SECONDS = 2.0
"""Between two readings of GPUs: their drivers count over about one."""


class Session:
    """The folders of one watched command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hook = folder / "hook"
        self._out = folder / "out"

    @classmethod
    @contextlib.contextmanager
    def laid(
        cls, above: Path, environment: str = "", owner: tuple[int, int] | None = None
    ) -> Iterator[Session]:
        """Lay the hook in a folder below `above`, and remove all of the session in the end.

        `environment`: the folder of the command's, as the command sees it; empty for any. `owner`:
        the user and group of the command, if another one's. Raise `InvalidError` if the folder
        cannot be written.
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
        """Return what processes wrote, by rank and age, and how many are left out."""
        paths = sorted(self._out.glob("*.json"), key=lambda path: -path.lstat().st_size)
        whole = [part for path in paths[: model.MOST_PROCESSES] if (part := model.part(path))]
        whole.sort(key=lambda p: (p.rank or 0, -(p.steps or 0), -p.seconds))
        return tuple(whole), len(paths) - len(whole)


class Running:
    """A command in the foreground, with this process's own input, output and signals."""

    seconds: float
    """How long it took, once it has ended."""
    machine: model.Machine
    """What this machine counted meanwhile."""

    def __init__(self, *, in_container: bool) -> None:
        self._in_container = in_container

    def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> int:
        """Run a command to its end and return its exit code; it gets all signals."""
        with self.counted():
            return process.accompany(argv, variables)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count what this machine does until the command that is run within has ended."""
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
    """Return a GPU by the sums and numbers of its readings."""
    return model.Gpu(
        index=index,
        name=name[:200],
        utilization=rates / 100 / times if times else None,
        watts=milliwatts / 1000 / counts if counts else None,
    )


def _children_seconds() -> float:
    """Return the CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_Readings = dict[tuple[int, str], list[float]]
"""GPUs by index and name → sum and number of per cents that were used, and of milliwatts."""


def _read_gpus(readings: _Readings, done: threading.Event) -> None:
    """Read NVIDIA's GPUs now and then; none without driver or `nvidia-ml-py`."""
    try:
        library: Any = importlib.import_module("pynvml")
        library.nvmlInit()
        gpus = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
        while not done.wait(_SECONDS):
            for index, gpu in enumerate(gpus):
                name = library.nvmlDeviceGetName(gpu)
                key = index, name if isinstance(name, str) else name.decode()
                sums = readings.setdefault(key, [0.0] * 4)
                with contextlib.suppress(library.NVMLError):  # not counted by this one
                    sums[0] += library.nvmlDeviceGetUtilizationRates(gpu).gpu
                    sums[1] += 1
                with contextlib.suppress(library.NVMLError):
                    sums[2] += library.nvmlDeviceGetPowerUsage(gpu)
                    sums[3] += 1
        library.nvmlShutdown()
    except Exception:  # noqa: BLE001 (the library defines its errors at run time)
        return


def source(project: Path) -> model.Source:
    """Return the project's commit and whether nothing in it differs; empty outside of git.

    git starts no monitor of the clone's files. A filter that the clone's configuration names may
    run, as the project's code does right after.
    """
    trusted = ("-c", "core.fsmonitor=false", "-c", f"safe.directory={project}")
    commit = git(project, *trusted, "rev-parse", "HEAD")
    state = git(project, *trusted, "status", "--porcelain") if commit else None
    return model.Source(
        commit=commit.strip() if commit else None, is_clean=None if state is None else not state
    )
