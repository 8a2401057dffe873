"""Judge a watched command: whether its work was on the device, and what was lost. Pure.

What a signed report says follows from that: what ran on what, and what it does not prove.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

from msgspec.structs import replace

from envbuilder.core.errors import clipped, counted, first, printable
from envbuilder.core.text import duration, percent
from envbuilder.watch import training as rules
from envbuilder.watch.model import MOST_ROWS, Finding, Observed, Watched
from envbuilder.watch.training import MOSTLY, NAME, SENTENCE, Run, device_share, finding, is_on

FEWER_STEPS = 0.5
"""Of the busiest rank's: ranks that train together take the same steps, up to uneven ends."""
LONG_STEP = 0.02
"""Seconds: shorter steps are bound by Python, which neither a GPU nor threads can help."""
LONG_TRAINING = 20.0
"""Seconds of training for which means from outside say something about it."""
LOW_UTILIZATION = 0.3
THROTTLED = 0.05
OTHERS = 0.25
"""Share of the CPUs' time that other programs took."""
FEW_THREADS = 0.4
"""Of the CPUs: by default, a thread for each core, which has two of them."""
IPEX = "torch_ipex::"
"""Operators of the one extension that trainings use: zentorch is for inference."""


Rule = Callable[[Run], Iterator[Finding]]


def judged(watched: Watched) -> Watched:
    """Return a report with its verdict and its findings, the largest loss first."""
    trained = training(watched)
    requested = clipped(watched.requested, NAME)
    shares = []
    for process in trained:
        share = device_share(process, requested)
        if share is not None:
            shares.append(share)
    on_device = fmean(shares) >= MOSTLY if shares else None
    cpus = _cpus(watched)
    cpus_each = cpus
    if not _in_turn(watched):
        cpus_each //= len(trained)
    run = Run(
        watched=watched,
        trained=trained,
        requested=requested,
        cpus=cpus,
        cpus_each=cpus_each,
        on_device=on_device,
    )
    findings: list[Finding] = []
    for rule in RULES:
        findings += rule(run)
    kinds = {each.kind for each in findings}
    findings = [each for each in findings if not kinds & CAUSES.get(each.kind, frozenset())]
    findings.sort(key=lambda each: -each.lost)
    if another_environment(watched):
        watched = replace(watched, fingerprint="", lock="")
    return replace(watched, on_device=on_device, findings=tuple(findings[:MOST_ROWS]))


def training(watched: Watched) -> tuple[Observed, ...]:
    """Return the processes that trained, by rank."""
    trained = [p for p in watched.processes if p.steps or p.windows or p.parameters or p.losses]
    return tuple(sorted(trained, key=lambda p: (p.rank or 0, p.pid)))


def another_environment(watched: Watched) -> str:
    """Return the environment that trained, or was to train, if it is not the one of the profile."""
    for process in training(watched) or watched.processes:
        if process.environment:
            return printable(process.environment, NAME)
    return ""


def environment(watched: Watched) -> str:
    """Return where the training ran: the profile, or another environment."""
    other = another_environment(watched)
    if other:
        return f"another environment: {other}"
    return f"profile {watched.profile}"


def _in_turn(watched: Watched) -> bool:
    """Return whether trainings ran one after another, as far as that can be told."""
    lasted = 0.0
    for process in training(watched):
        if process.rank is not None:
            return False
        lasted += process.seconds
    return lasted <= watched.seconds


def speed(watched: Watched) -> tuple[float, str] | None:
    """Return how fast the training was, of all ranks together, and in what; None if not seen."""
    trained = [p for p in training(watched) if p.training_seconds > 0]
    is_in_turn = _in_turn(watched)
    length = sum(p.training_seconds for p in trained)
    for unit in ("tokens", "samples"):
        total = 0.0
        for process in trained:
            seconds = length if is_in_turn else process.training_seconds
            total += (getattr(process, unit) or 0) / seconds
        if total > 0:
            return total, unit
    steps = max(((p.steps or 0) / p.training_seconds for p in trained), default=0.0)
    return (steps, "steps") if steps > 0 else None


def device(watched: Watched) -> str:
    """Return the device that did most of the work, with its title; `unknown` if not seen."""
    name = _most(watched, "device")
    shown = printable(name, NAME)
    for process in training(watched):
        for each in process.devices:
            if each.device == name and each.title:
                return f"{printable(each.title, NAME)} ({shown})"
    return shown


def dtype(watched: Watched) -> str:
    """Return the dtype of most of the work; `unknown` if not seen."""
    return printable(_most(watched, "dtype"), NAME)


def framework(watched: Watched) -> str:
    """Return the framework of the training with its release; empty if none was seen."""
    for process in training(watched):
        return printable(f"{process.framework} {process.version}", NAME)
    return ""


def _most(watched: Watched, field: str) -> str:
    """Return the value of a field that most matrix work has, else most parameters."""
    work = Counter[str]()
    sizes = Counter[str]()
    for process in training(watched):
        for row in process.work:
            work[getattr(row, field)] += row.flops
        for placed in process.parameters:
            sizes[getattr(placed, field)] += placed.bytes
    for value, number in (*work.most_common(1), *sizes.most_common(1)):
        if number:
            return value
    return "unknown"


def _each(rule: Callable[[Observed, Run], Iterator[Finding]]) -> Rule:
    """Return a rule that judges every training: it yields the worst finding of each kind.

    A finding names its ranks unless all have it.
    """

    def of_run(run: Run) -> Iterator[Finding]:
        worst: dict[str, Finding] = {}
        who: dict[str, list[str]] = {}
        for process in run.trained:
            name = f"pid {process.pid}" if process.rank is None else f"rank {process.rank}"
            for each in rule(process, run):
                who.setdefault(each.kind, []).append(name)
                if each.kind not in worst or each.lost > worst[each.kind].lost:
                    worst[each.kind] = each
        for kind, each in worst.items():
            if len(who[kind]) < len(run.trained):
                yield replace(each, says=clipped(f"{first(who[kind], 4)}: {each.says}", SENTENCE))
            else:
                yield each

    return of_run


def _cpus(watched: Watched) -> int:
    """Return how many CPUs the command could use, by its quota."""
    quota = watched.machine.quota
    return max(min(watched.machine.cpus, math.ceil(quota)) if quota else watched.machine.cpus, 1)


def _ranks(run: Run) -> dict[int, Observed]:
    """Return the processes of a group by rank."""
    # A rank's own children inherit its number, and do less than it.
    ordered = sorted(run.watched.processes, key=lambda p: (p.steps or 0, p.seconds))
    ranks = {p.rank: p for p in ordered if p.rank is not None}
    return dict(sorted(ranks.items()))


def _idle_ranks(run: Run) -> Iterator[Finding]:
    """Yield that ranks did less than the others."""
    ranks = _ranks(run)
    # What was killed early wrote its steps when it began.
    steps: dict[int, int] = {}
    for rank, process in ranks.items():
        if process.steps is not None and (process.finished or process.seconds >= LONG_TRAINING):
            steps[rank] = process.steps
    highest = max(steps.values(), default=0)
    idle = [rank for rank, n in steps.items() if n < FEWER_STEPS * highest]
    if idle:
        least = steps[idle[0]]
        yield finding(
            "idle rank",
            f"Rank {first(list(map(str, idle)), 4)} took {least:,} steps, others up to"
            f" {highest:,}.",
            "Give every rank the same number of batches (`DistributedSampler`), and look at what"
            " this rank waits for or skips.",
            len(idle) / len(ranks) * (1 - least / highest),
        )


def _shared_devices(run: Run) -> Iterator[Finding]:
    """Yield that ranks share a device."""
    used: dict[str, list[str]] = {}
    for rank, process in _ranks(run).items():
        rows = [row for row in process.parameters if row.device != "cpu"]
        visible = [device for device in process.devices if device.device != "cpu"]
        # Each may see one device only, its own or its part of one, under the same name.
        if rows and len(visible) > 1:
            most = max(rows, key=lambda row: row.bytes)
            used.setdefault(most.device, []).append(str(rank))
    for device, sharing in used.items():
        if len(sharing) > 1:
            yield finding(
                "shared device",
                f"Ranks {first(sharing, 8)} trained on the same device, {device}.",
                'Choose it by the rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`, and'
                " start no more ranks than there are devices.",
                1 - 1 / len(sharing),
            )


def unused_kernels(watched: Watched) -> list[str]:
    """Return the operators that the profile promises and nobody saw; none where none were seen.

    Of compiled code none are seen, and under the script's own profiler neither.
    """
    names = []
    for process in training(watched):
        if process.work:
            names += [row.operator for row in process.work]
            names += [f"{space}::" for space in process.namespaces]
    if not names:
        return []
    return [prefix for prefix in watched.expected_kernels if not _is_used(prefix, names)]


def _is_used(prefix: str, names: Sequence[str]) -> bool:
    return any(name.startswith(prefix) for name in names)


def _extension(run: Run) -> Iterator[Finding]:
    """Yield that operators of IPEX are not used, though the profile promises them."""
    if IPEX in unused_kernels(run.watched):
        yield finding(
            "extension",
            f"No operator of the extension that profile {run.watched.profile} promises was"
            f" seen: {IPEX}.",
            "Write `import intel_extension_for_pytorch as ipex` and `model, optimizer ="
            " ipex.optimize(model, optimizer=optimizer)`.",
            0.1,  # not measured: what the extension promises
        )


def _others(watched: Watched) -> float:
    """Return the share of the CPUs' time that other programs took."""
    of_all = watched.seconds * max(watched.machine.cpus, 1)
    if of_all:
        return min((watched.machine.other_seconds or 0.0) / of_all, 1.0)
    return 0.0


def _data(process: Observed, run: Run) -> Iterator[Finding]:
    """Yield that the training waited for its data, unless that is other programs' doing."""
    needed = 0
    for each in run.trained:
        needed += 1
        if each.loader:
            needed += each.loader.workers
    others = _others(run.watched)
    if others < OTHERS or run.watched.machine.cpus * (1 - others) >= needed:
        yield from rules.waiting(process, run)


def _has_long_steps(run: Run) -> bool:
    """Return whether steps are long enough, and the training, to be judged from outside."""
    lengths = [p.training_seconds / p.steps for p in run.trained if p.steps and p.steps > 1]
    if not lengths or median(lengths) < LONG_STEP:
        return False
    return max(p.training_seconds for p in run.trained) >= LONG_TRAINING


def _utilization(run: Run) -> Iterator[Finding]:
    """Yield that the GPU idles."""
    counted_gpus = [gpu for gpu in run.watched.machine.gpus if gpu.utilization is not None]
    if is_on("cpu", run.requested) or not counted_gpus or not run.on_device:
        return
    busiest = max(counted_gpus, key=lambda gpu: gpu.utilization or 0.0)
    share = busiest.utilization or 0.0
    if share < LOW_UTILIZATION and _has_long_steps(run):
        yield finding(
            "utilization",
            f"The work was on {run.requested}, but its kernels ran in"
            f" {percent(share, 0)} of the time (GPU {busiest.index}, {busiest.name}).",
            "Try a larger batch, `torch.compile(model)`, and `.item()` or `print` in every"
            " hundredth step only.",
            1 - share,
        )


def _quota(run: Run) -> Iterator[Finding]:
    """Yield that a CPU quota stopped the command."""
    machine = run.watched.machine
    of_all = run.watched.seconds * max(machine.cpus, 1) or math.inf
    throttled = machine.throttled_seconds or 0.0
    if throttled / of_all >= THROTTLED:
        quota = ""
        if machine.quota:
            quota = f" of {machine.quota:.3g} CPUs"
        yield finding(
            "quota",
            f"The CPU quota{quota} stopped the command for {percent(throttled / of_all, 0)} of the"
            f" CPUs' time ({duration(throttled)}).",
            f"Raise the limit, or use fewer threads: `OMP_NUM_THREADS={run.cpus}`.",
            throttled / of_all,
        )


def _load(run: Run) -> Iterator[Finding]:
    """Yield that other programs took much of the CPUs' time."""
    others = _others(run.watched)
    if run.trained and others >= OTHERS:
        yield finding(
            "load",
            f"Other programs used {percent(others, 0)} of this machine's CPUs"
            f" ({duration(run.watched.machine.other_seconds or 0.0)} of CPU time).",
            "Measure again on a quiet machine before the rate is compared.",
            others / 2,
        )


def _threads(run: Run) -> Iterator[Finding]:
    """Yield that the framework uses few threads."""
    threads = sum(p.threads or 0 for p in run.trained)
    if not is_on("cpu", run.requested) or not run.on_device or not _has_long_steps(run):
        return
    if 0 < threads < FEW_THREADS * run.cpus:
        yield finding(
            "threads",
            f"The framework used {counted(threads, 'thread')} on {counted(run.cpus, 'CPU')}.",
            f"Set `OMP_NUM_THREADS={max(run.cpus // len(run.trained), 1)}`; torchrun sets it to 1"
            " unless it is set.",
            (1 - threads / run.cpus) / 2,
        )


def _environment(run: Run) -> Iterator[Finding]:
    """Yield that the training ran in another environment."""
    if other := another_environment(run.watched):
        yield finding(
            "environment",
            f"The training ran in another environment, {other}.",
            "Run it with the `python` of the profile's environment: a script that activates"
            " another one, or names its own Python, leaves it.",
            1.0,
        )


RULES: tuple[Rule, ...] = (
    _each(rules.devices),
    _each(rules.autocast),
    _each(rules.copies),
    _each(rules.fallbacks),
    _each(rules.doubles),
    _each(rules.gradients),
    _each(rules.losses),
    _each(_data),
    _idle_ranks,
    _shared_devices,
    _extension,
    _utilization,
    _quota,
    _load,
    _threads,
    _environment,
)
"""All that is judged. A rule yields findings, which every report, terminal and page shows."""
CAUSES = {
    "not learning": frozenset({"gradients", "no update"}),
    "round trip": frozenset({"split"}),
    "utilization": frozenset({"data", "split", "device", "fallback", "round trip", "load"}),
}
"""Kind of a finding → those whose consequence it is: with one of these, it is left out."""
