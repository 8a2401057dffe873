"""Rules that judge what was measured in one process of a training run.

The rules have no side effects. Each rule needs a measurement. Anything that was not measured is
neither criticized nor assumed to be right. When in doubt, a rule reports nothing, because wrongly
criticizing a training run costs more trust than failing to mention a loss of time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any, TypeVar

from msgspec import Struct

from envbuilder.core.errors import clipped, counted, first
from envbuilder.core.text import amount, duration, memory, percent
from envbuilder.payload.machine.accelerators import ACCELERATORS
from envbuilder.watch.model import Copy, Finding, Observed, Placed, Watched, Work

_Key = TypeVar("_Key")
NONE_THERE = 0.01
"""Minimum share of the work that is treated as work on a device. A smaller share may come from a
metric or a seed's tensor."""
MOSTLY = 0.5
"""Minimum share of the work on the device at which the work as a whole is considered to be on the
device."""
LEFT_BEHIND = 1e-4
LEFT_BEHIND_BYTES = 64
"""Minimum size in bytes of misplaced parameters that are reported. `LEFT_BEHIND` is their minimum
share. Fewer parameters do no harm. For example, a temperature is a single number."""
CPU_WORK = 0.2
"""Minimum share of matrix work on the CPU that is reported even if no parameters are on the CPU. A
smaller share may come from augmentation or metrics."""
NOT_ON_DEVICE_LOST = 0.9
"""Share of the time assumed to be lost if the work is not on the device. It is not measured. An
accelerator trains at least about ten times as fast."""
DOUBLE = 0.1
"""Minimum share of work or parameters in float64 that is reported. A loss that is summed in float64
causes a smaller share."""
DOUBLE_LOST = 0.5
"""Share of the time that work in float64 loses. Its speed is half that of float32 on CPUs and data
center GPUs, and an eighth or less on other GPUs."""
UNSCALED = 0.5
"""Minimum share of matrix work in float32 under autocast that is reported. The operators that
autocast leaves in float32 do no matrix work."""
AUTOCAST_LOST = 0.3
WAITING = 0.2
"""Minimum share of the training time spent waiting for batches that is reported."""
WAITING_BATCH = 0.005
WAITING_TOTAL = 2.0
"""Minimum total waiting time, in seconds, that is reported. `WAITING_BATCH` is the minimum per
batch. Handing over a batch from a worker takes one or two milliseconds. Starting a worker takes
longer."""
MOST_WORKERS = 8
"""Maximum number of workers that the advice recommends. More workers rarely help a single
process."""
COPY_BYTES = 1024
"""Minimum size in bytes of a tensor whose copies are reported. Smaller tensors are labels and
metrics."""
COPY_RATE = 1e10
"""Assumed speed of copies from ordinary memory over PCIe, in bytes per second."""
LEAST_LOOKS = 16
"""Minimum number of examined steps after which a missing gradient is reported. The experts in a
mixture get their first gradient sooner."""
IN_TURN = 0.5
"""Share of the examined steps. If some parameter got its first gradient only after this share, more
parameters will probably follow, so nothing is reported."""
SHORT_STEP = 0.02
"""Maximum duration of a step, in seconds, at which training with a single sample per step is
reported. Longer steps have enough work to do."""
EVALUATING_LOST = 0.2
SINGLE_LOST = 0.5
"""Share of the time assumed to be lost by training with single samples. `EVALUATING_LOST` is the
share for training in `eval()` mode. Neither was measured."""
LEAST_UPDATES = 2
LEAST_WINDOWS = 2
"""Minimum number of sampled steps that must agree. `LEAST_UPDATES` is the minimum number of
compared updates."""
LEAST_LOSSES = 64
LEAST_STEPS = 200
LABELS = 3
"""Minimum number of labels per class at which the number of classes is considered to be known."""
NEAR_CHANCE = 0.04
STILL = 0.99
"""Fraction of the loss of guessing. A loss that ends below this fraction has begun to fall."""
STEADY = 0.05
"""Maximum standard deviation of the losses, relative to the loss of guessing, at which the losses
are considered constant. The deviation is larger once the model has learned some samples."""
LARGEST_LOSS = 1e30
"""Minimum loss that is ignored. The user's script may report such losses, but they say nothing
about learning."""
NAME = 60
SENTENCE = 500
"""Maximum number of characters of a sentence that contains names written by the script. `NAME` is
the maximum for such a name."""
_USELESS = 1.0
_MOVES = {
    "torch": 'Write `model.to("{torch}")` before the optimizer is made, and for each batch'
    ' `batch = batch.to("{torch}")`.',
    "jax": (
        "Check that `python -c 'import jax; print(jax.devices())'` names {requested} in this"
        " environment. Do not set `JAX_PLATFORMS`, and do not put arrays on the CPU."
    ),
    "tensorflow": (
        'Check whether `tf.config.list_physical_devices("GPU")` names the device in this'
        ' environment, and remove `tf.device("/CPU:0")` from the script.'
    ),
}
"""Advice on how to move the work to the device, by framework."""
_LOADING = (
    "Load batches in other processes: `DataLoader(…, num_workers={most})`.",
    (
        "Use more workers, `DataLoader(…, num_workers={most}, persistent_workers=True)`, or store"
        " the data decoded and resized."
    ),
    (
        "More workers than CPUs do not help: store the data decoded and resized, on a local disk,"
        " and do the rest of the preparation on whole batches."
    ),
)
"""Advice for a training run that waits for data. The three entries are for a run without workers,
with some workers, and with as many workers as can help."""
_FINDS_NAN = {
    "torch": "torch.autograd.set_detect_anomaly(True)",
    "jax": 'jax.config.update("jax_debug_nans", True)',
    "tensorflow": "tf.debugging.enable_check_numerics()",
}
STANDING_STILL_LOST = 0.3
"""Share of the time assumed to be lost if the loss does not fall. It was not measured. The actual
share may be everything or nothing."""


class Run(Struct, frozen=True, kw_only=True):
    """A watched command in the form that the rules judge."""

    watched: Watched
    trained: tuple[Observed, ...]
    """The processes that trained, sorted by rank."""
    requested: str
    cpus: int
    """Number of CPUs that the command may use."""
    cpus_each: int
    """Number of CPUs for each of the processes that train at the same time."""
    needed: int
    """Number of CPUs that the training processes and their data loaders keep busy."""
    others: float
    """Share of the machine's CPUs that other programs used, or 0 if there were enough CPUs for
    everything."""
    on_device: bool | None


def is_on(device: str, requested: str) -> bool:
    """Return whether a device is of the requested kind.

    `device` is the framework's name for the device, such as `cuda:0`.
    """
    kind = requested.partition(":")[0]
    names = {kind}
    if kind in ACCELERATORS and kind != "cpu":
        names |= {ACCELERATORS[kind].device, "gpu"}
    return device.partition(":")[0].lower() in names


def device_share(process: Observed, requested: str) -> float | None:
    """Return the fraction of a process's work that was done on the requested kind of device.

    If matrix work was observed, return the fraction of this work. Otherwise, return the fraction of
    the parameters, because nothing else can be observed of compiled code. Return None if the
    fraction is unknown.
    """
    share = share_of(process.work, "flops", lambda row: is_on(row.device, requested))
    if share is None:
        share = share_of(process.parameters, "bytes", lambda row: is_on(row.device, requested))
        size = sum(row.bytes for row in process.parameters)
        peaks = [d.peak or 0 for d in process.devices if is_on(d.device, requested)]
        if not share and max(peaks, default=0) > size:
            return None  # an optimizer may keep them elsewhere
    return share


def share_of(rows: Iterable[Any], size: str, counts: Callable[[Any], bool]) -> float | None:
    """Return the weighted share of the rows for which `counts` returns true.

    `size` is the name of the field by which the rows are weighted. Return None if this field is
    zero in all rows.
    """
    total = 0.0
    counted = 0.0
    for row in rows:
        value = getattr(row, size)
        total += value
        if counts(row):
            counted += value
    return counted / total if total else None


def totals(pairs: Iterable[tuple[_Key, float]]) -> list[tuple[_Key, float]]:
    """Return each key with the sum of its numbers, largest sum first. Sums of zero are omitted."""
    sums = defaultdict[_Key, float](int)
    for key, number in pairs:
        sums[key] += number
    return sorted(((key, total) for key, total in sums.items() if total), key=lambda pair: -pair[1])


def finding(kind: str, says: str, advice: str, lost: float) -> Finding:
    """Return a finding whose texts and lost share of time are limited to what a report allows."""
    return Finding(
        kind=kind,
        says=clipped(says, SENTENCE),
        advice=clipped(advice, SENTENCE),
        lost=min(max(lost, 0.0), 1.0),
    )


def devices(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield a finding if all or part of the work was not done on the requested device."""
    requested = run.requested
    share = device_share(process, requested)
    if share is None:
        return

    def is_elsewhere(row: Work | Placed) -> bool:
        return not is_on(row.device, requested)

    rows: list[Work | Placed] = [*process.work, *process.parameters]
    places = first(list(dict.fromkeys(row.device for row in rows if is_elsewhere(row))), 3)
    work = share_of(process.work, "flops", is_elsewhere) or 0.0
    parameters = share_of(process.parameters, "bytes", is_elsewhere) or 0.0
    size = sum(row.bytes for row in process.parameters) * parameters
    shares = {"matrix work": work, "parameters": parameters}
    what = [f"{percent(part)} of the {name}" for name, part in shares.items() if part]
    measured = f"{' and '.join(what)} on {places}{_in_steps(process)}"
    # A layer may have nearly all of the work, and another still be where it should.
    is_left = not process.parameters or parameters > 1 - NONE_THERE
    if share < NONE_THERE and is_left:
        says = f"The work was not on {requested}: {measured}."
        advice = _MOVES[process.framework].format(requested=requested, torch=_torch(requested))
        yield finding("device", says, advice, NOT_ON_DEVICE_LOST)
    elif (size >= LEFT_BEHIND_BYTES and LEFT_BEHIND <= parameters < 1) or 1 - share >= CPU_WORK:
        says = f"A part of the model was not on {requested}: {measured}"
        leaving = [copy for copy in process.copies if not is_on(copy.target, requested)]
        if leaving:
            says += f"; tensors leave {requested} {_at(leaving)}"
        yield finding(
            "split",
            f"{says}.",
            f'Once all layers exist, move the whole model, `model.to("{_torch(requested)}")`,'
            " before the optimizer is made. Move no layer elsewhere after that.",
            max(work, parameters),
        )


def _in_steps(process: Observed) -> str:
    return f", in {counted(process.windows, 'sampled step')}" if process.windows else ""


def _torch(requested: str) -> str:
    """Return PyTorch's name for a requested device."""
    return ACCELERATORS[requested].device if requested in ACCELERATORS else requested


def _at(copies: Sequence[Copy]) -> str:
    """Return a phrase that says which lines of the script copied the most data.

    If no line is known, the phrase says that the copies were made in a library.
    """
    lines = totals((copy.where, copy.bytes) for copy in copies if copy.where)
    return f"at {first([where for where, _ in lines], 3)}" if lines else "in a library"


def doubles(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield a finding if float64 was used for much of the work or for many parameters.

    Usually, float32 is enough.
    """
    share, what = max(
        (share_of(process.work, "flops", _is_double) or 0.0, "matrix work"),
        (share_of(process.parameters, "bytes", _is_double) or 0.0, "parameters"),
    )
    if share < DOUBLE:
        return
    yield finding(
        "float64",
        f"{percent(share, 0)} of the {what} in float64{_in_steps(process)}: twice the time and"
        " memory of float32, and on most GPUs far more.",
        "Unless you need this precision, convert data from NumPy, `.astype(np.float32)` or"
        " `tensor.float()`, and avoid `model.double()` and a default dtype of float64.",
        share * DOUBLE_LOST,
    )


def _is_double(row: Work | Placed) -> bool:
    return row.dtype == "float64"


def autocast(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield a finding if the work is in float32 although autocast or a scaler is used.

    The evidence is the dtypes of the work done with gradients. The finding is wrong if autocast is
    intended only for a teacher model or an evaluation. Nothing is reported if autocast took effect
    in work without gradients.
    """
    asked = process.autocast
    steps = process.steps or 0
    half = [dtype for dtype in asked.dtypes if dtype != "float32"]
    # A region that is entered in validation only does what it should.
    is_used = asked.scaled or (half and asked.entered >= steps * MOSTLY)
    is_inferring = any(row.inferred and row.dtype in half for row in process.work)
    share = share_of(process.work, "with_gradients", lambda row: row.dtype == "float32")
    if not is_used or is_inferring or share is None or share < UNSCALED:
        return
    name = _torch(run.requested)
    yield finding(
        "autocast",
        f"{percent(share, 0)} of the matrix work stayed in float32{_in_steps(process)}, although"
        " the script uses autocast or a gradient scaler.",
        f'Compute the model and the loss inside `with torch.autocast("{name}",'
        " dtype=torch.bfloat16):`, on the device of the model.",
        share * AUTOCAST_LOST,
    )


def waiting(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield a finding if the training waited for its data.

    The evidence is the time that the loaders took to provide each batch. The finding assumes that
    the loaders are the cause, which is wrong if other programs used the CPUs. In that case, the
    finding mentions these programs.
    """
    loader = process.loader
    if loader is None or not loader.batches or not process.training_seconds:
        return
    share = loader.waited / process.training_seconds
    each = loader.waited / loader.batches
    if share < WAITING or each < WAITING_BATCH or loader.waited < WAITING_TOTAL:
        return
    most = min(run.cpus_each, MOST_WORKERS)
    busy = ""
    if run.others:
        busy = f" Other programs used {percent(run.others, 0)} of the CPUs meanwhile."
    yield finding(
        "data",
        f"The training waited {percent(share, 0)} of its time for data: {duration(each)} for each"
        f" of {loader.batches:,} batches, with {counted(loader.workers, 'worker')} in the loader"
        f" and {counted(run.cpus_each, 'CPU')}.{busy}",
        _LOADING[(loader.workers > 0) + (loader.workers >= most)].format(most=most),
        share,
    )


def copies(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield a finding if tensors were copied to the device although they were already there.

    The evidence is that the same tensor was copied to the device earlier in the same step, or that
    the copied tensor was made from a tensor that still exists on the device. The finding is wrong
    if the earlier copy was freed in between.
    """
    large = [copy for copy in process.copies if copy.bytes >= COPY_BYTES * copy.calls]
    needless = [copy for copy in large if copy.again and is_on(copy.target, run.requested)]
    if needless:
        worst = max(needless, key=_needless)
        size = sum(map(_needless, needless))
        yield finding(
            "copied twice",
            f"A tensor {worst.shape} was copied from {worst.source} to {worst.target}, where it had"
            f" been in the same step, {_at(needless)}: {sum(copy.again for copy in needless):,}"
            f" needless copies ({memory(size)}){_in_steps(process)}.",
            "Copy a batch once, at the start of the step, `batch = batch.to(device)`, and use that"
            " variable from there on, without `.cpu()` or `.numpy()`.",
            size / COPY_RATE / (process.window_seconds or math.inf),
        )


def _needless(copy: Copy) -> float:
    """Return the number of bytes that were copied needlessly."""
    return copy.again / max(copy.calls, 1) * copy.bytes


def gradients(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield a finding if some parameters never get a gradient.

    The evidence is that the parameters had no gradient in any examined step, and that many steps
    were examined. Nothing is reported if steps change parameters although no parameter has a
    gradient, because a library may then keep the gradients elsewhere. Nothing is reported either if
    some parameter got its first gradient late, because parts of the model are then used in turn.
    """
    trainable = process.trainable or 0
    without = min(process.without_gradient or 0, trainable)
    looks = process.gradient_looks
    if not without or looks < LEAST_LOOKS or process.newest_gradient > IN_TURN * looks:
        return
    if without == trainable and process.changed_at:
        return
    yield finding(
        "gradients",
        f"{without:,} of {trainable:,} trainable parameter tensors had no gradient in"
        f" {counted(looks, 'examined step')}.",
        "Look for `.detach()`, `.data`, `.item()` or `torch.no_grad()` between them and the loss,"
        " and for another model's parameters in the optimizer. Parameters that the task does not"
        " use, or uses later, need no gradient.",
        without / trainable,
    )


def updates(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield a finding if the optimizer's steps change no parameters.

    The evidence is that, in the most recent comparisons, no compared parameter with a gradient
    changed, and that these comparisons cover most of the training. Nothing is reported if there are
    several optimizers, because another optimizer may take its turn later.
    """
    share = 1 - min(process.changed_at / max(process.steps or 0, 1), 1.0)
    still = process.unchanged_updates
    if still < LEAST_UPDATES or share < MOSTLY or (process.optimizers or 1) > 1:
        return
    none = "None"
    if process.changed_at:
        none = f"After step {process.changed_at:,}, none"
    yield finding(
        "no update",
        f"{none} of {still:,} compared optimizer steps changed any of the examined parameters.",
        "Check `optimizer.param_groups` for a learning rate that is zero or too small for the"
        " dtype, or for the parameters of another model.",
        share,
    )


def modules(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield findings if models were trained in `eval()` mode or with one sample at a time.

    The evidence covers all models that an optimizer trains, in every sampled step. The findings are
    wrong if the user intends these modes. Training with one sample at a time is assumed to be
    intended for text data and for long steps.
    """
    windows = process.windows
    if process.evaluating == windows >= LEAST_WINDOWS:
        yield finding(
            "eval mode",
            f"The model was trained after `eval()`{_in_steps(process)}, so without dropout, and"
            " with the stored means of its batch norms.",
            "Unless you intend this, call `model.train()` before each epoch, and after each"
            " evaluation.",
            EVALUATING_LOST,
        )
    steps = process.steps or 0
    length = process.training_seconds / max(steps, 1)
    is_single = process.single == windows >= LEAST_WINDOWS and not process.tokens
    if is_single and 0 < (process.samples or 0) <= steps and length < SHORT_STEP:
        yield finding(
            "single sample",
            f"Each of {steps:,} steps had one sample, and took {duration(length)}.",
            "Unless you intend this, give `DataLoader` a `batch_size`, which is 1 by default.",
            SINGLE_LOST,
        )


def fallbacks(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield a finding if operators ran on the CPU because the device does not support them."""
    if not process.fallbacks:
        return
    # The host waits for it.
    seconds = sum(row.seconds for row in process.work if row.operator in process.fallbacks)
    yield finding(
        "fallback",
        f"{first(process.fallbacks, 4)} ran on the CPU, because {run.requested} has no such"
        f" operator: {duration(seconds)} there{_in_steps(process)}.",
        "Write this part with other operators, move it out of the step, or try a newer"
        f" {process.framework}: each such call waits for the device and copies data back and"
        " forth.",
        seconds / (process.window_seconds or math.inf),
    )


def losses(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield a finding if the loss was not finite or is no better than random guessing.

    The loss of random guessing is the logarithm of the number of classes that the cross-entropy
    function received. The finding about guessing is wrong for a long training run that learns
    nothing at first. Nothing is reported about guessing if the loss falls at all.
    """
    pairs = process.losses
    lost = [step for step, loss in pairs if loss is None]
    if lost:
        stays = pairs[-1][1] is None
        yield finding(
            "not finite",
            f"The loss was not a finite number: first at step {lost[0]:,}, in {len(lost):,} of"
            f" {len(pairs):,} recorded steps, {'and still' if stays else 'but no longer'} at the"
            " end.",
            f"Find the first operation at fault with `{_FINDS_NAN[process.framework]}`. A lower"
            " learning rate, clipped gradients or bfloat16 instead of float16 may be enough.",
            _USELESS if stays else len(lost) / len(pairs),
        )
        return
    values = [loss for _, loss in pairs if loss is not None and abs(loss) < LARGEST_LOSS]
    classes = process.classes
    if len(values) < LEAST_LOSSES or classes < 2 or process.labels < LABELS * classes:
        return
    # Losses of adversaries stand still if all is well.
    if (process.optimizers or 1) > 1:
        return
    quarter = len(values) // 4
    values = values[quarter:]  # the first ones are those of the initial weights
    begin = fmean(values[:quarter])
    end = fmean(values[-quarter:])
    guessing = math.log(classes)
    fell = end < STILL * guessing
    is_chance = abs(begin - guessing) <= NEAR_CHANCE * guessing
    is_steady = pstdev(values) <= STEADY * guessing
    if pairs[-1][0] >= LEAST_STEPS and is_chance and is_steady and not fell:
        yield finding(
            "not learning",
            f"The loss stayed at {amount(end)} over {pairs[-1][0]:,} steps, about the loss of"
            f" guessing one of {classes:,} classes, {amount(guessing)}.",
            "Unless this run continues an earlier one, check the learning rate, the labels, and"
            " whether the loss gets logits.",
            STANDING_STILL_LOST,
        )
