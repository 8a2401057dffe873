"""Run a command with a hook in its interpreters, and collect what they and this machine saw.

The hook is a folder of files within the project, where a container sees it, too. It belongs to this
one command and is removed afterwards: the environment itself has no part of it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Self

from msgspec import Struct

from envbuilder.core import files, process
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import HIDDEN, redacted
from envbuilder.payload.machine import contention
from envbuilder.project.repository import git
from envbuilder.watch import model

_INSIDE = Path(__file__).with_name("inside")
_PLACE = ".envbuilder/watch"
_SECONDS = 2.0
"""Between two readings of GPUs: their drivers count over about one."""
_SECRET = ("token", "secret", "password", "passwd", "api-key", "api_key", "apikey", "credential")
_HINT = "Name a folder that you can write, or run the command without watching it."


class Session:
    """The folders of one watched command."""

    def __init__(self, above: Path) -> None:
        self.folder = above / _PLACE / secrets.token_hex(6)
        self.hook = self.folder / "hook"
        self._out = self.folder / "out"

    @contextlib.contextmanager
    def laid(self) -> Iterator[Session]:
        """Lay the hook, and remove all of the session in the end.

        Raise `InvalidError` if the project cannot be written.
        """
        if os.pathsep in str(self.folder):
            raise InvalidError(f"{self.folder}: no folder on PYTHONPATH may have {os.pathsep!r}")
        place = self.folder.parent
        try:
            if place.is_symlink() or place.parent.is_symlink():
                raise InvalidError(f"{place}: is a link", "Remove it, or make it a folder.")
            if not (place.parent / ".gitignore").exists():
                files.write(place.parent / ".gitignore", b"*\n")
            self._out.mkdir(parents=True)
            shutil.copytree(_INSIDE, self.hook, ignore=lambda *_: {"__pycache__", "__init__.py"})
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            raise InvalidError(f"{self.folder}: {problem}", _HINT) from error
        try:
            yield self
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another command is being watched
                place.rmdir()

    def parts(self) -> tuple[tuple[model.Observed, ...], int]:
        """Return what processes wrote, by rank and age, and how many are left out."""
        paths = sorted(self._out.glob("*.json"), key=lambda path: path.name)
        parts = [_part(path) for path in paths[: model.MOST_PROCESSES]]
        whole = [part for part in parts if part is not None]
        whole.sort(key=lambda p: (p.rank or 0, -(p.steps or 0), -p.seconds))
        return tuple(whole), len(paths) - len(whole)


def _part(path: Path) -> model.Observed | None:
    try:
        return None if path.is_symlink() else model.part(files.read(path, model.PART_BYTES))
    except (OSError, ValueError):
        return None


class Ended(Struct, frozen=True, kw_only=True):
    """A command that ended: its exit code as a shell reports it, and what the machine counted."""

    exit_code: int
    seconds: float
    machine: model.Machine


class Running:
    """A command in the foreground, with this process's own input, output and signals."""

    def __init__(self, *, in_container: bool) -> None:
        self._in_container = in_container
        self.ended: Ended | None = None

    def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> int:
        """Run a command to its end and return its exit code; it gets all signals."""
        before, began = contention.read(), monotonic()
        with _Gpus() as gpus:
            code = process.accompany(argv, variables)
        seconds = monotonic() - began
        counted = contention.between(before, contention.read(), None)
        machine = self._machine(counted, gpus.means())
        self.ended = Ended(exit_code=code, seconds=seconds, machine=machine)
        return code

    def _machine(self, counted: Mapping[str, Any], gpus: tuple[model.Gpu, ...]) -> model.Machine:
        other = counted["other_seconds"]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        if other is not None:
            other = max(0.0, other - used.ru_utime - used.ru_stime)
        return model.Machine(
            cpus=counted["cpus"] or os.cpu_count() or 0,
            quota=counted["quota"],
            throttled_seconds=counted["throttled_seconds"],
            # A container's processes are children of its engine.
            other_seconds=None if self._in_container else other,
            gpus=gpus,
        )


class _Gpus:
    """Readings of this machine's GPUs, taken in a thread while a command runs."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._seen: dict[tuple[int, str], list[tuple[float | None, float | None, int]]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join(_SECONDS)

    def _sample(self) -> None:
        try:
            with _nvml() as read:
                while not self._done.wait(_SECONDS):
                    for key, values in read():
                        self._seen.setdefault(key, []).append(values)
        except Exception:  # noqa: BLE001 (the library defines its errors at run time)
            return

    def means(self) -> tuple[model.Gpu, ...]:
        """Return each GPU's means, of as many readings as there were."""
        result = []
        for (index, name), readings in sorted(self._seen.items())[: model.MOST_ROWS]:
            utilization = [u for u, _, _ in readings if u is not None]
            watts = [w for _, w, _ in readings if w is not None]
            result.append(
                model.Gpu(
                    index=index,
                    name=name[:200],
                    utilization=sum(utilization) / len(utilization) if utilization else None,
                    watts=sum(watts) / len(watts) if watts else None,
                    memory=max(memory for _, _, memory in readings),
                )
            )
        return tuple(result)


_Reading = tuple[tuple[int, str], tuple[float | None, float | None, int]]


@contextlib.contextmanager
def _nvml() -> Iterator[Callable[[], list[_Reading]]]:
    """Yield a function that reads NVIDIA's GPUs; none without driver or `nvidia-ml-py`."""
    library: Any = importlib.import_module("pynvml")

    library.nvmlInit()
    try:
        handles = [
            library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())
        ]

        def counted(function: str, handle: Any) -> Any:
            try:
                return getattr(library, function)(handle)
            except library.NVMLError:  # not counted by this one
                return None

        def read() -> list[_Reading]:
            result = []
            for index, handle in enumerate(handles):
                rates = counted("nvmlDeviceGetUtilizationRates", handle)
                milliwatts = counted("nvmlDeviceGetPowerUsage", handle)
                memory = counted("nvmlDeviceGetMemoryInfo", handle)
                name = library.nvmlDeviceGetName(handle)
                values = (
                    None if rates is None else rates.gpu / 100,
                    None if milliwatts is None else milliwatts / 1000,
                    0 if memory is None else memory.used,
                )
                result.append(((index, name if isinstance(name, str) else name.decode()), values))
            return result

        yield read
    finally:
        library.nvmlShutdown()


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


def shown(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command as it is kept: without the values of arguments that name a secret."""
    result: list[str] = []
    is_secret = False
    for word in argv[:200]:
        name, equals, _ = word.partition("=")
        named = any(part in name.lower() for part in _SECRET)
        if is_secret and not word.startswith("-"):
            result.append(HIDDEN)
        elif named and equals:
            result.append(f"{name}={HIDDEN}")
        else:
            result.append(redacted(word)[:1000])
        is_secret = named and not equals and word.startswith("-")
    return tuple(result)
