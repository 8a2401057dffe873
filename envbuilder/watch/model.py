"""What a watched training looked like: its form in files, checked when it is read.

Each process of the command that imports a framework writes an `Observed`; what was started, where,
and what this machine counted meanwhile makes it a `Watched`, which is kept. Both come from outside:
the script could have written them, so every number and text is bounded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import console, decoding, files
from envbuilder.core.errors import Hint, InvalidError, redacted_values

KIND = "watch"
SIGNED_TYPE = "urn:envbuilder:watch:v1"
"""The predicate type of a statement about a report's file."""
PART_BYTES = 256 << 10
"""Maximum size of what one process of the user's command writes."""
MOST_PROCESSES = 256
"""Processes that are read; the user's command may start any number."""
MOST_ROWS = 64
MOST_LOSSES = 512
"""Rows of each table that a process of the command writes, and of its losses."""

Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds since 1970."""
_Rows = Meta(max_length=MOST_ROWS)
_T = TypeVar("_T")


class Placed(Struct, frozen=True, kw_only=True):
    """Bytes of tensors of one kind on one device in one dtype (`cuda:0`, `float32`)."""

    device: Name
    dtype: Name
    bytes: Count


class Work(Struct, frozen=True, kw_only=True):
    """What an operator of the sampled steps did on one device in one dtype (`aten::addmm`).

    `flops` counts matrix products, convolutions and attention, forward and backward; `seconds` is
    the time of the host's calls, which is the work's own time on the CPU alone.
    """

    operator: Name
    device: Name
    dtype: Name
    flops: Count
    seconds: Seconds
    inferred: Count = 0
    """FLOP of it under `no_grad`: of a teacher, an actor, an evaluation."""

    @property
    def with_gradients(self) -> int:
        """FLOP of what is learned from."""
        return max(self.flops - self.inferred, 0)


class Copy(Struct, frozen=True, kw_only=True):
    """Copies of tensors of one shape between two devices in the sampled steps.

    `where` is FILE:LINE of the script, empty if unknown.
    """

    source: Name
    target: Name
    calls: Count
    bytes: Count
    shape: Name = ""
    where: Name = ""
    again: Count = 0
    """Calls whose tensor had been on that device before in the same step."""


class Device(Struct, frozen=True, kw_only=True):
    """A device that the framework sees; peaks are of what the process allocated through it."""

    device: Name
    title: Name = ""
    peak: Count | None = None


class Loader(Struct, frozen=True, kw_only=True):
    """All of a process's loaders: time spent waiting for their next batch while training."""

    batches: Count
    waited: Seconds
    workers: Count
    """Of the loader of the last batch."""


class Autocast(Struct, frozen=True, kw_only=True):
    """Entries into enabled autocast regions, their dtypes, and whether gradients were scaled."""

    entered: Count = 0
    dtypes: Annotated[tuple[Name, ...], _Rows] = ()
    scaled: bool = False


class Observed(Struct, frozen=True, kw_only=True):
    """What one process did with a framework. None: not seen with this framework or release."""

    framework: Literal["torch", "jax", "tensorflow"]
    version: Name
    pid: Count
    environment: Name = ""
    """The folder of its Python's environment, if that is not the one of the report."""
    rank: Count | None = None
    finished: bool = False
    """Wrote its last part at its end; otherwise it was killed, or still runs."""
    seconds: Seconds
    """Since the framework was imported."""
    threads: Count | None = None
    """That the framework uses for one operator on the CPU."""
    devices: Annotated[tuple[Device, ...], _Rows] = ()
    peak_rss: Count = 0
    optimizers: Count | None = None
    steps: Count | None = None
    began: Moment = 0.0
    """At its first step; where none is seen, when the framework was imported."""
    training_seconds: Seconds = 0.0
    """From the first step to the last one."""
    samples: Count | None = None
    """In the batches of loaders while training."""
    tokens: Count | None = None
    loader: Loader | None = None
    windows: Count = 0
    """Sampled steps; `work` and `copies` are sums over them."""
    window_seconds: Seconds = 0.0
    overhead_seconds: Seconds = 0.0
    """Estimated time that observing took."""
    parameters: Annotated[tuple[Placed, ...], _Rows] = ()
    trainable: Count | None = None
    """Parameters of optimizers that require gradients."""
    without_gradient: Count | None = None
    """Those of them that had none in any step that was looked at."""
    gradient_looks: Count = 0
    """Steps in which gradients were looked at: many at first, until all had one."""
    newest_gradient: Count = 0
    """The look that saw a parameter's first gradient last: late, if parts are used in turn."""
    unchanged_updates: Count = 0
    """The last comparisons, in which no parameter of some had changed though it had a gradient."""
    changed_at: Count = 0
    """The last step that was seen to change one of them."""
    classes: Count = 0
    """Different labels that cross entropy got in sampled steps."""
    labels: Count = 0
    evaluating: Count = 0
    """Sampled steps of models that drop out or normalize batches, all of them after `eval()`."""
    single: Count = 0
    """Sampled steps in which each model got one sample."""
    work: Annotated[tuple[Work, ...], _Rows] = ()
    copies: Annotated[tuple[Copy, ...], _Rows] = ()
    fallbacks: Annotated[tuple[Name, ...], _Rows] = ()
    """Operators that the framework said ran on the CPU because the device has none."""
    autocast: Autocast = Autocast()
    losses: Annotated[tuple[tuple[Count, float | None], ...], Meta(max_length=MOST_LOSSES)] = ()
    """Step and loss of sampled steps; None where it was not finite."""
    unseen: Annotated[tuple[Name, ...], _Rows] = ()
    """Sentences on what could not be observed."""


class Gpu(Struct, frozen=True, kw_only=True):
    """An accelerator as its driver counted it meanwhile: means over the training."""

    index: Count
    name: Name
    utilization: Share | None = None
    watts: Annotated[float, Meta(ge=0, le=1e5)] | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """What the operating system counted meanwhile; seconds are CPU seconds."""

    cpus: Count
    quota: float | None = None
    throttled_seconds: Seconds | None = None
    other_seconds: Seconds | None = None
    """Of programs that do not belong to the command."""
    gpus: Annotated[tuple[Gpu, ...], _Rows] = ()


class Source(Struct, frozen=True, kw_only=True):
    """The project's commit, and whether its files were those of the commit at the start."""

    folder: Name = ""
    """A digest of its path."""
    environment: Name = ""
    """Which of its environments; empty for `default`."""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}\Z")] | None = None
    is_clean: bool | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """Something wrong or lost: a sentence with what was measured, and what to do about it."""

    kind: Name
    says: Annotated[str, Meta(max_length=500)]
    advice: Annotated[str, Meta(max_length=500)]
    lost: Share = 0.0
    """Estimated share of the training's time that is lost; 1 if the result is of no use."""


class Watched(Struct, frozen=True, kw_only=True):
    """A watched command: the report that is kept."""

    schema: Literal[1] = 1
    kind: Literal["watch"] = "watch"
    envbuilder: Name
    time: Name
    """Of the start, as `core.text.stamp_now` writes it."""
    host: Name
    command: Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=200)]
    """Values of arguments that look like secrets are replaced."""
    profile: Name
    backend: Name
    fingerprint: Name
    """Empty, as `lock` is, if another environment trained."""
    lock: Name
    """sha256 of the lock."""
    project: Source = Source()
    requested: Name
    """The kind of device the work should be on (`cuda`)."""
    exit_code: int
    seconds: Seconds
    machine: Machine
    processes: Annotated[tuple[Observed, ...], Meta(max_length=MOST_PROCESSES)] = ()
    left_out: Count = 0
    """Processes beyond `MOST_PROCESSES`, or whose part was damaged."""
    on_device: bool | None = None
    """Whether the work was on the requested device; None if that was not seen."""
    findings: Annotated[tuple[Finding, ...], _Rows] = ()
    """The largest loss first."""


is_report = console.has_keys("schema", "kind", "processes", "findings")
"""Whether a file's content is a report of a watched training, whole or damaged."""


def encoded(watched: Watched) -> str:
    """Return a report as the text of a file."""
    return console.as_json(watched, indent=1) + "\n"


def readable(watched: Watched) -> Watched:
    """Return a report for files: without credentials, and with as many processes as can be read."""
    watched = decoding.convert(redacted_values(msgspec.to_builtins(watched)), Watched)
    while watched.processes:
        try:
            decoding.strict_json(encoded(watched).encode())
            break
        except ValueError:  # too large
            rest = watched.processes[: len(watched.processes) // 2]
            watched = replace(
                watched,
                processes=rest,
                left_out=watched.left_out + len(watched.processes) - len(rest),
            )
    return watched


def read(path: Path) -> Watched:
    """Read a kept report; raise `InvalidError` if it is damaged or something else."""
    return parsed(files.read_named(path, decoding.LARGEST), path)


def parsed(content: bytes, path: Path) -> Watched:
    """Return a report of a file by its bytes; raise `InvalidError` if they are not one."""
    try:
        return _decoded(content, Watched)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path}: damaged: {error}", _WHAT_IT_IS) from error


_WHAT_IT_IS = Hint("Write a report", ("watch", "--output", "FILE", "--", "COMMAND"))


def part(path: Path) -> Observed | None:
    """Return what a process wrote; None if that is damaged, or a link."""
    try:
        if path.is_symlink():
            return None
        return _decoded(files.read(path, PART_BYTES), Observed)
    except (OSError, ValueError, RecursionError):
        return None


def _decoded(content: bytes, kind: type[_T]) -> _T:
    decoding.require_few_values(content)
    return decoding.from_json(content, kind)
