"""The data of a watched training: the form in which files store it, validated on reading.

Each process of the command that imports a framework writes an `Observed`. Together with the
command, the place and the machine's own counters, these make a `Watched`, the report that is kept.
Both are untrusted, since the script could have written them, so every number and text has a limit
here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import console, decoding, files
from envbuilder.core.errors import Hint, InvalidError, redacted_values

PART_BYTES = 256 << 10
"""Maximum size in bytes of the file that one process of the user's command writes."""
MOST_PROCESSES = 256
"""Maximum number of processes whose data is read, since the user's command may start any number."""
MOST_ROWS = 64
MOST_LOSSES = 512
"""Maximum number of losses that a process of the command writes, and of rows in each of the other
tables."""

Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""A time in seconds since 1970."""
_Rows = Meta(max_length=MOST_ROWS)
_T = TypeVar("_T")


class Placed(Struct, frozen=True, kw_only=True):
    """The bytes of all tensors of one kind on one device (`cuda:0`) in one dtype (`float32`)."""

    device: Name
    dtype: Name
    bytes: Count


class Work(Struct, frozen=True, kw_only=True):
    """The work of an operator (`aten::addmm`) on one device in one dtype, over all sampled steps.

    `flops` counts matrix products, convolutions and attention, forward and backward. `seconds` is
    the time that the host's calls took, which is the time of the work itself only on the CPU.
    """

    operator: Name
    device: Name
    dtype: Name
    flops: Count
    seconds: Seconds
    inferred: Count = 0
    """The part of `flops` that was computed under `no_grad`, for a teacher, an actor or an
    evaluation."""

    @property
    def with_gradients(self) -> int:
        """Return the part of `flops` that was computed with gradients enabled."""
        return max(self.flops - self.inferred, 0)


class Copy(Struct, frozen=True, kw_only=True):
    """Copies of tensors of one shape from one device to another, over all sampled steps.

    `where` is the FILE:LINE of the script that copied, or empty if unknown.
    """

    source: Name
    target: Name
    calls: Count
    bytes: Count
    shape: Name = ""
    where: Name = ""
    again: Count = 0
    """Number of calls whose tensor had already been on the target device in the same step."""


class Device(Struct, frozen=True, kw_only=True):
    """A device that the framework sees.

    `peak` is the largest number of bytes that the process had allocated on it at one time.
    """

    device: Name
    title: Name = ""
    peak: Count | None = None


class Loader(Struct, frozen=True, kw_only=True):
    """All data loaders of a process; `waited` is the time that the training waited for batches."""

    batches: Count
    waited: Seconds
    workers: Count
    """Number of workers of the data loader that gave the last batch."""


class Autocast(Struct, frozen=True, kw_only=True):
    """Number of enabled autocast regions entered, their dtypes, and whether a scaler was used."""

    entered: Count = 0
    dtypes: Annotated[tuple[Name, ...], _Rows] = ()
    scaled: bool = False


class Observed(Struct, frozen=True, kw_only=True):
    """What was observed of a framework in one process; None stands for what was not observed."""

    framework: Literal["torch", "jax", "tensorflow"]
    version: Name
    pid: Count
    environment: Name = ""
    """Folder of the Python environment, if it is not the environment of the report."""
    rank: Count | None = None
    finished: bool = False
    """Whether the process wrote its data when it ended. Otherwise, it was killed or is still
    running."""
    seconds: Seconds
    """Seconds since the framework was imported."""
    threads: Count | None = None
    """Number of threads that the framework uses to run one operator on the CPU."""
    devices: Annotated[tuple[Device, ...], _Rows] = ()
    peak_rss: Count = 0
    optimizers: Count | None = None
    steps: Count | None = None
    began: Moment = 0.0
    """Time of the first step or, if no step was seen, time of the framework's import."""
    training_seconds: Seconds = 0.0
    """Seconds from the first step to the last one."""
    samples: Count | None = None
    """Number of samples in the batches that data loaders gave during the training."""
    tokens: Count | None = None
    loader: Loader | None = None
    windows: Count = 0
    """Number of sampled steps; `work` and `copies` are sums over them."""
    window_seconds: Seconds = 0.0
    overhead_seconds: Seconds = 0.0
    """Estimated time that the observation itself took, in seconds."""
    parameters: Annotated[tuple[Placed, ...], _Rows] = ()
    trainable: Count | None = None
    """Number of parameters in the optimizers that require gradients."""
    without_gradient: Count | None = None
    """Number of trainable parameters that had no gradient in any examined step."""
    gradient_looks: Count = 0
    """Number of steps in which gradients were examined: many at first, until all parameters had
    one."""
    newest_gradient: Count = 0
    """Number of the examination in which the last parameter to get its first gradient got it. The
    number is high if parts of the model are used in turn."""
    unchanged_updates: Count = 0
    """Number of comparisons, counted back from the latest, in which no compared parameter had
    changed although it had a gradient."""
    changed_at: Count = 0
    """The last step in which a compared parameter was seen to change."""
    classes: Count = 0
    """Number of different labels that cross entropy received in sampled steps."""
    labels: Count = 0
    evaluating: Count = 0
    """Number of sampled steps in which all models with dropout or batch normalization were in
    `eval()` mode."""
    single: Count = 0
    """Number of sampled steps in which each model received a single sample."""
    work: Annotated[tuple[Work, ...], _Rows] = ()
    copies: Annotated[tuple[Copy, ...], _Rows] = ()
    fallbacks: Annotated[tuple[Name, ...], _Rows] = ()
    """Operators that, according to the framework, ran on the CPU because the device does not have
    them."""
    autocast: Autocast = Autocast()
    losses: Annotated[tuple[tuple[Count, float | None], ...], Meta(max_length=MOST_LOSSES)] = ()
    """Number and loss of each sampled step; the loss is None if it was not finite."""
    unseen: Annotated[tuple[Name, ...], _Rows] = ()
    """Sentences that say what could not be observed."""


class Gpu(Struct, frozen=True, kw_only=True):
    """An accelerator as its driver describes it; the values are means over the training."""

    index: Count
    name: Name
    utilization: Share | None = None
    watts: Annotated[float, Meta(ge=0, le=1e5)] | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """The operating system's counters during the training; seconds are CPU seconds."""

    cpus: Count
    quota: float | None = None
    throttled_seconds: Seconds | None = None
    other_seconds: Seconds | None = None
    """CPU seconds used by programs that do not belong to the command."""
    gpus: Annotated[tuple[Gpu, ...], _Rows] = ()


class Source(Struct, frozen=True, kw_only=True):
    """The project's commit, and whether its files matched the commit when the command started."""

    environment: Name = ""
    """Name of the project's environment; empty for `default`."""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}\Z")] | None = None
    is_clean: bool | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """A problem or lost time: a sentence that says what was measured, and advice on what to do."""

    kind: Name
    says: Annotated[str, Meta(max_length=500)]
    advice: Annotated[str, Meta(max_length=500)]
    lost: Share = 0.0
    """Estimated share of the training's time that is lost, or 1 if the result is useless."""


class Watched(Struct, frozen=True, kw_only=True):
    """The report of a watched command."""

    schema: Literal[1] = 1
    kind: Literal["watch"] = "watch"
    envbuilder: Name
    time: Name
    """Time at which the command started, as `core.text.stamp_now` writes it."""
    host: Name
    command: Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=200)]
    """The command; values of arguments that look like secrets have been replaced."""
    profile: Name
    backend: Name
    fingerprint: Name
    """Fingerprint of the environment. This field and `lock` are empty if another environment
    trained."""
    lock: Name
    """The lock's sha256."""
    project: Source = Source()
    requested: Name
    """Kind of device on which the work should have been done (`cuda`)."""
    exit_code: int
    seconds: Seconds
    machine: Machine
    processes: Annotated[tuple[Observed, ...], Meta(max_length=MOST_PROCESSES)] = ()
    left_out: Count = 0
    """Number of processes that are left out because there were more than `MOST_PROCESSES`, or
    because their file was damaged."""
    on_device: bool | None = None
    """Whether the work was on the requested device; None if that was not seen."""
    findings: Annotated[tuple[Finding, ...], _Rows] = ()
    """Findings, largest loss first."""


is_report = console.has_keys("schema", "kind", "processes", "findings")
"""A function that returns whether a file's content is the report of a watched training, intact or
damaged."""


def encoded(watched: Watched) -> str:
    """Return a report as JSON text for a file."""
    return console.as_json(watched, indent=1) + "\n"


def readable(watched: Watched) -> Watched:
    """Return the report in a form that can be stored and read back.

    Credentials are removed. Processes are removed, too, if the report would otherwise be too large
    to be read.
    """
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
    """Read a stored report; raise `InvalidError` if it is damaged or of another kind."""
    return parsed(files.read_named(path, decoding.LARGEST), path)


def parsed(content: bytes, path: Path) -> Watched:
    """Parse a file's content as a report; raise `InvalidError` if it is not a valid one."""
    try:
        return _decoded(content, Watched)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path}: damaged: {error}", _WHAT_IT_IS) from error


_WHAT_IT_IS = Hint("Write a report", ("watch", "--output", "FILE", "--", "COMMAND"))


def part(path: Path) -> Observed | None:
    """Return the data that a process wrote, or None if the file is damaged or is a link."""
    try:
        if path.is_symlink():
            return None
        return _decoded(files.read(path, PART_BYTES), Observed)
    except (OSError, ValueError, RecursionError):
        return None


def _decoded(content: bytes, kind: type[_T]) -> _T:
    decoding.require_few_values(content)
    return decoding.from_json(content, kind)
