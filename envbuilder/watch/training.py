"""Rules on what one process measured of its training. Pure.

Each rule needs something that was measured: what was not seen is never blamed, nor taken as right.
Rules err on the side of silence, since a sentence that blames an honest training costs more trust
than a loss that stays unnamed.
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
"""A smaller share of the work is none: a metric or a seed's tensor is not the training."""
MOSTLY = 0.5
"""Work is on the device if at least this share of it is."""
LEFT_BEHIND = 1e-4
LEFT_BEHIND_BYTES = 64
"""Parameters on the CPU below these do no harm: a temperature is one number."""
CPU_WORK = 0.2
"""Share of matrix work on the CPU that is no augmentation or metric, even without parameters."""
NOT_ON_DEVICE_LOST = 0.9
"""Not measured: an accelerator trains about ten times as fast, rather more."""
DOUBLE = 0.1
"""Share of work or parameters in float64; a loss that is summed in it stays below."""
DOUBLE_LOST = 0.5
"""Half the rate on CPUs and data centre GPUs, an eighth and less on others."""
UNSCALED = 0.5
"""Share of matrix work in float32 under autocast: what autocast leaves in float32 has none."""
AUTOCAST_LOST = 0.3
WAITING = 0.2
"""Share of the training's time spent waiting for batches."""
WAITING_BATCH = 0.005
WAITING_TOTAL = 2.0
"""Seconds: handing a batch over from a worker takes a millisecond or two, starting one longer."""
MOST_WORKERS = 8
"""More rarely help a single process."""
COPY_BYTES = 1024
"""Smaller tensors are labels and metrics."""
COPY_RATE = 1e10
"""Bytes per second from ordinary memory over PCIe."""
LEAST_LOOKS = 16
"""Steps without a parameter's gradient: experts get theirs sooner."""
IN_TURN = 0.5
"""Share of these steps after which no parameter gets its first gradient, unless more will."""
SHORT_STEP = 0.02
"""Seconds: a longer step of one sample has enough to do."""
EVALUATING_LOST = 0.2
SINGLE_LOST = 0.5
"""Neither is measured."""
LEAST_UPDATES = 2
LEAST_WINDOWS = 2
"""Steps that must agree."""
LEAST_LOSSES = 64
LEAST_STEPS = 200
LABELS = 3
"""Of each class, to know their number."""
NEAR_CHANCE = 0.04
STILL = 0.99
"""A loss that ends below this share of guessing has begun to fall."""
STEADY = 0.05
"""Deviation of the losses over their mean; it is larger once some samples are known."""
LARGEST_LOSS = 1e30
"""A loss beyond it, which the user's script may have, says nothing of learning."""
NAME = 60
SENTENCE = 500
"""Characters of a name that the script wrote, and of a sentence with such names."""
_USELESS = 1.0
_MOVES = {
    "torch": 'Write `model.to("{torch}")` before the optimizer is made, and for each batch'
    ' `batch = batch.to("{torch}")`.',
    "jax": "See what `python -c 'import jax; print(jax.devices())'` prints in this environment: it"
    " must name {requested}; neither set `JAX_PLATFORMS` nor put arrays on the CPU.",
    "tensorflow": 'See whether `tf.config.list_physical_devices("GPU")` names the device in this'
    ' environment, and remove `tf.device("/CPU:0")` from the script.',
}
"""How to have work done on a device."""
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
"""What to do about waiting for data: without workers, with some, with as many as help."""
_FINDS_NAN = {
    "torch": "torch.autograd.set_detect_anomaly(True)",
    "jax": 'jax.config.update("jax_debug_nans", True)',
    "tensorflow": "tf.debugging.enable_check_numerics()",
}
STANDING_STILL_LOST = 0.3
"""Not measured: it may be all, or nothing."""


class Run(Struct, frozen=True, kw_only=True):
    """A watched command, as rules judge it."""

    watched: Watched
    trained: tuple[Observed, ...]
    """The processes that trained, by rank."""
    requested: str
    cpus: int
    """How many CPUs the command may use."""
    cpus_each: int
    """How many of them each of those may use that train at once."""
    needed: int
    """How many of them these keep busy, with their loaders."""
    others: float
    """Share of the machine's CPUs that other programs used; 0 if there were enough for all."""
    on_device: bool | None


def is_on(device: str, requested: str) -> bool:
    """Return whether a device (`cuda:0`) is of the requested kind, as its framework calls it."""
    kind = requested.partition(":")[0]
    names = {kind}
    if kind in ACCELERATORS and kind != "cpu":
        names |= {ACCELERATORS[kind].device, "gpu"}
    return device.partition(":")[0].lower() in names


def device_share(process: Observed, requested: str) -> float | None:
    """Return the share of a process's work on a kind of device; None if it was not seen.

    That of matrix work if any was seen, else of parameters: compiled code shows nothing more.
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
    """Return the share of the rows that count, by one of their fields; None if all are zero."""
    total = 0.0
    counted = 0.0
    for row in rows:
        value = getattr(row, size)
        total += value
        if counts(row):
            counted += value
    return counted / total if total else None


def totals(pairs: Iterable[tuple[_Key, float]]) -> list[tuple[_Key, float]]:
    """Return each key with the sum of its numbers, the largest first; without those of nothing."""
    sums = defaultdict[_Key, float](int)
    for key, number in pairs:
        sums[key] += number
    return sorted(((key, total) for key, total in sums.items() if total), key=lambda pair: -pair[1])


def finding(kind: str, says: str, advice: str, lost: float) -> Finding:
    """Return a finding within the bounds of a report."""
    return Finding(
        kind=kind,
        says=clipped(says, SENTENCE),
        advice=clipped(advice, SENTENCE),
        lost=min(max(lost, 0.0), 1.0),
    )


def devices(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield that the work, or a part of it, was not on the requested device."""
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
            f'Move the whole model once all its layers exist, `model.to("{_torch(requested)}")`,'
            " before the optimizer is made, and no layer elsewhere after it.",
            max(work, parameters),
        )


def _in_steps(process: Observed) -> str:
    return f", in {counted(process.windows, 'sampled step')}" if process.windows else ""


def _torch(requested: str) -> str:
    """Return what torch calls a requested device."""
    return ACCELERATORS[requested].device if requested in ACCELERATORS else requested


def _at(copies: Sequence[Copy]) -> str:
    """Return from which lines most of these copies are."""
    lines = totals((copy.where, copy.bytes) for copy in copies if copy.where)
    return f"at {first([where for where, _ in lines], 3)}" if lines else "in a library"


def doubles(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield that float64 was used where float32 is usual."""
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
        "Unless this precision is needed, convert data from NumPy, `.astype(np.float32)` or"
        " `tensor.float()`, and use no `model.double()` and no default dtype of float64.",
        share * DOUBLE_LOST,
    )


def _is_double(row: Work | Placed) -> bool:
    return row.dtype == "float64"


def autocast(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield that autocast or a scaler of gradients is used, and that the work is in float32.

    Evidence: dtypes of the work with gradients. Wrong if autocast is meant for a teacher or an
    evaluation: silent where it had its effect on work without gradients.
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
        f" the script uses autocast or a scaler of gradients.",
        f'Compute the model and the loss inside `with torch.autocast("{name}",'
        " dtype=torch.bfloat16):`, on the device of the model.",
        share * AUTOCAST_LOST,
    )


def waiting(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield that the training waited for its data.

    Evidence: the time until its loaders gave each batch. Wrong about the cause where other programs
    had the CPUs: that is said.
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
    """Yield that tensors were copied to the device although they were there.

    Evidence: the very tensor was copied there before in the same step, or came from one there that
    still exists. Wrong if the copy there was freed meanwhile.
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
    """Return the bytes that were copied although they were there."""
    return copy.again / max(copy.calls, 1) * copy.bytes


def gradients(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield that parameters get no gradient.

    Evidence: none in any step that was looked at, of which there were many. Wrong where libraries
    keep gradients elsewhere, then steps change parameters; and where parts are used in turn, then
    some get their first gradient late.
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
        f" {counted(looks, 'step')} that were looked at.",
        "Look for `.detach()`, `.data`, `.item()` or `torch.no_grad()` between them and the loss,"
        " and for another model's parameters in the optimizer. What the task does not use, or uses"
        " later, needs none.",
        without / trainable,
    )


def updates(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield that steps change nothing.

    Evidence: in the last comparisons, which go back over most of the training, no number changed
    that had a gradient. Wrong if it is one of several optimizers', which may have its turn later.
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
        f"{none} of {still:,} compared steps of the optimizer changed any of the parameters"
        " that were looked at.",
        "Look at `optimizer.param_groups`: a learning rate that is zero or too small for the dtype,"
        " or the parameters of another model.",
        share,
    )


def modules(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield that models were trained as they are evaluated, or with one sample at a time.

    Evidence: all models that an optimizer trains, in every sampled step. Wrong if either is meant;
    texts, and long steps of one sample, are taken to be.
    """
    windows = process.windows
    if process.evaluating == windows >= LEAST_WINDOWS:
        yield finding(
            "eval mode",
            f"The model was trained after `eval()`{_in_steps(process)}: without dropout, and with"
            " the stored means of its batch norms.",
            "Unless that is meant, call `model.train()` before each epoch, and after each"
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
            "Unless that is meant, give `DataLoader` a `batch_size`: without, it is 1.",
            SINGLE_LOST,
        )


def fallbacks(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield that operators ran on the CPU because the device has none."""
    if not process.fallbacks:
        return
    # The host waits for it.
    seconds = sum(row.seconds for row in process.work if row.operator in process.fallbacks)
    yield finding(
        "fallback",
        f"{first(process.fallbacks, 4)} ran on the CPU, because {run.requested} has no such"
        f" operator: {duration(seconds)} there{_in_steps(process)}.",
        f"Write this part with other operators, move it out of the step, or try a newer"
        f" {process.framework}: each such call waits for the device and copies forth and back.",
        seconds / (process.window_seconds or math.inf),
    )


def losses(process: Observed, _: Run) -> Iterator[Finding]:
    """Yield that the loss was not finite, or that it stands where guessing would.

    Evidence: the logarithm of the number of classes that cross entropy saw. Wrong if a training
    learns nothing at first, and is long at that; silent while the loss falls at all.
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
            f"Find the first operation at fault with `{_FINDS_NAN[process.framework]}`; a lower"
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
            f"The loss stands still at {amount(end)} in {pairs[-1][0]:,} steps, about that of"
            f" guessing one of {classes:,} classes, {amount(guessing)}.",
            "If this is not a run that goes on from an earlier one: look at the learning rate, at"
            " the labels, and whether the loss gets logits.",
            STANDING_STILL_LOST,
        )
