"""The data of a watched training run, in the form in which it is stored.

Each process of the command that imports a framework writes an `Observed`. These objects, the
command, its location and the machine's own counters make up a `Watched`, which is the stored
report. Both types are validated when they are read. They are untrusted, because the script could
have written them. Therefore, this module limits the size of every number and string.
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
"""Maximum number of processes whose data is read, since the user's command may start any number of
processes."""
MOST_ROWS = 64
MOST_LOSSES = 512
"""Maximum number of losses that one process of the command writes, and maximum number of rows in
each of the other tables."""

Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""A time in seconds since 1970."""
_Rows = Meta(max_length=MOST_ROWS)
_T = TypeVar("_T")


class Placed(Struct, frozen=True, kw_only=True):
    """The size in bytes of all tensors of one kind with the same device and dtype."""

    device: Name
    dtype: Name
    bytes: Count


class Work(Struct, frozen=True, kw_only=True):
    """The work of one operator on one device in one dtype, summed over all sampled steps.

    An example of an operator is `aten::addmm`. `flops` counts the operations of matrix products,
    convolutions and attention, both forward and backward. `seconds` is the time that the calls took
    on the host. This is the duration of the work itself only if the work was done on the CPU.
    """

    operator: Name
    device: Name
    dtype: Name
    flops: Count
    seconds: Seconds
    inferred: Count = 0
    """The part of `flops` that was computed under `no_grad`, such as for a teacher, an actor or an
    evaluation."""

    @property
    def with_gradients(self) -> int:
        """The part of `flops` that was computed with gradients enabled."""
        return max(self.flops - self.inferred, 0)


class Copy(Struct, frozen=True, kw_only=True):
    """Copies of tensors of one shape from one device to another, over all sampled steps.

    `where` is the line of the script that made the copies, in the form FILE:LINE, or empty if the
    line is unknown.
    """

    source: Name
    target: Name
    calls: Count
    bytes: Count
    shape: Name = ""
    where: Name = ""
    again: Count = 0
    """Number of calls whose tensor had already been on the target device during the same step."""


class Device(Struct, frozen=True, kw_only=True):
    """A device that the framework sees.

    `peak` is the largest number of bytes that the process had allocated on the device at one time.
    """

    device: Name
    title: Name = ""
    peak: Count | None = None


class Loader(Struct, frozen=True, kw_only=True):
    """The data loaders of a process, taken together.

    `waited` is the time in seconds that the training waited for batches.
    """

    batches: Count
    waited: Seconds
    workers: Count
    """Number of workers of the data loader that provided the last batch."""


class Autocast(Struct, frozen=True, kw_only=True):
    """How a process used autocast.

    This includes the number of enabled autocast regions that were entered, their dtypes, and
    whether a gradient scaler was used.
    """

    entered: Count = 0
    dtypes: Annotated[tuple[Name, ...], _Rows] = ()
    scaled: bool = False


class Observed(Struct, frozen=True, kw_only=True):
    """The observations about a framework in one process.

    None means that a value was not observed.
    """

    framework: Literal["torch", "jax", "tensorflow"]
    version: Name
    pid: Count
    environment: Name = ""
    """Folder of the Python environment, if it is not the environment that the report is about."""
    rank: Count | None = None
    finished: bool = False
    """Whether the process wrote its data when it ended. If not, it was killed or is still
    running."""
    seconds: Seconds
    """Seconds since the framework was imported."""
    threads: Count | None = None
    """Number of threads that the framework uses within one operator on the CPU."""
    devices: Annotated[tuple[Device, ...], _Rows] = ()
    peak_rss: Count = 0
    optimizers: Count | None = None
    steps: Count | None = None
    began: Moment = 0.0
    """Time of the first step or, if no step was observed, of the framework's import."""
    training_seconds: Seconds = 0.0
    """Seconds from the first step to the last."""
    samples: Count | None = None
    """Number of samples in the batches that data loaders provided during the training."""
    tokens: Count | None = None
    loader: Loader | None = None
    windows: Count = 0
    """Number of sampled steps. `work` and `copies` are sums over these steps."""
    window_seconds: Seconds = 0.0
    overhead_seconds: Seconds = 0.0
    """Estimated time in seconds that the observation itself took."""
    parameters: Annotated[tuple[Placed, ...], _Rows] = ()
    trainable: Count | None = None
    """Number of parameters in the optimizers that require gradients."""
    without_gradient: Count | None = None
    """Number of trainable parameters that had no gradient in any examined step."""
    gradient_looks: Count = 0
    """Number of steps in which gradients were examined. At first, many steps are examined, until
    all parameters have had a gradient."""
    newest_gradient: Count = 0
    """Value of `gradient_looks` when a parameter last received its first gradient. It is high if
    parts of the model are used in turn."""
    unchanged_updates: Count = 0
    """Number of most recent comparisons in a row in which no compared parameter had changed
    although it had a gradient."""
    changed_at: Count = 0
    """The last step in which a compared parameter was observed to change."""
    classes: Count = 0
    """Number of distinct labels that cross entropy received in sampled steps."""
    labels: Count = 0
    evaluating: Count = 0
    """Number of sampled steps in which all models with dropout or batch normalization were in
    `eval()` mode."""
    single: Count = 0
    """Number of sampled steps in which each model received a single sample."""
    work: Annotated[tuple[Work, ...], _Rows] = ()
    copies: Annotated[tuple[Copy, ...], _Rows] = ()
    fallbacks: Annotated[tuple[Name, ...], _Rows] = ()
    """Operators that, according to the framework, ran on the CPU because the device does not
    support them."""
    autocast: Autocast = Autocast()
    losses: Annotated[tuple[tuple[Count, float | None], ...], Meta(max_length=MOST_LOSSES)] = ()
    """Step number and loss of each sampled step. The loss is None if it was not finite."""
    unseen: Annotated[tuple[Name, ...], _Rows] = ()
    """Sentences that say what could not be observed."""


class Gpu(Struct, frozen=True, kw_only=True):
    """An accelerator as described by its driver.

    Utilization and power are means over the training run.
    """

    index: Count
    name: Name
    utilization: Share | None = None
    watts: Annotated[float, Meta(ge=0, le=1e5)] | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """The operating system's counters during the training run. Seconds are CPU seconds."""

    cpus: Count
    quota: float | None = None
    throttled_seconds: Seconds | None = None
    other_seconds: Seconds | None = None
    """CPU seconds used by programs that are not part of the command."""
    gpus: Annotated[tuple[Gpu, ...], _Rows] = ()


class Source(Struct, frozen=True, kw_only=True):
    """The project's commit, and whether the project's files matched the commit.

    The files are compared with the commit when the command starts.
    """

    environment: Name = ""
    """Name of the project's environment. Empty for the environment `default`."""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}\Z")] | None = None
    is_clean: bool | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """A problem or a loss of time: a sentence that says what was measured, and advice."""

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
    """Time at which the command started, in the format of `core.text.stamp_now`."""
    host: Name
    command: Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=200)]
    """The command. Argument values that look like secrets have been replaced."""
    profile: Name
    backend: Name
    fingerprint: Name
    """Fingerprint of the environment. This field and `lock` are empty if the training ran in
    another environment."""
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
    """Number of processes that were omitted because there were more than `MOST_PROCESSES` or
    because their file was damaged."""
    on_device: bool | None = None
    """Whether the work was on the requested device. None if that was not observed."""
    findings: Annotated[tuple[Finding, ...], _Rows] = ()
    """Findings, sorted by loss, largest first."""


is_report = console.has_keys("schema", "kind", "processes", "findings")
"""Function that returns whether a file's content is the report of a watched training run, intact or
damaged."""


def encoded(watched: Watched) -> str:
    """Return a report as JSON text for a file."""
    return console.as_json(watched, indent=1) + "\n"


def readable(watched: Watched) -> Watched:
    """Return the report in a form that can be stored and read back.

    Credentials are removed. If the report is then still too large to be read, processes are also
    removed.
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
    """Read a stored report. Raise `InvalidError` if the file is damaged or is not a report."""
    return parsed(files.read_named(path, decoding.LARGEST), path)


def parsed(content: bytes, path: Path) -> Watched:
    """Parse a file's content as a report. Raise `InvalidError` if it is not a valid report."""
    try:
        return _decoded(content, Watched)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path}: damaged: {error}", _WHAT_IT_IS) from error


_WHAT_IT_IS = Hint("Write a report", ("watch", "--output", "FILE", "--", "COMMAND"))


def part(path: Path) -> Observed | None:
    """Return the observations that a process wrote to a file.

    Return None if the file is damaged or is a symbolic link.
    """
    try:
        if path.is_symlink():
            return None
        return _decoded(files.read(path, PART_BYTES), Observed)
    except (OSError, ValueError, RecursionError):
        return None


def _decoded(content: bytes, kind: type[_T]) -> _T:
    decoding.require_few_values(content)
    return decoding.from_json(content, kind)
