"""Derive settings worth a trial from the payload's survey of its environment. Pure.

Never candidates: settings that silently lower the precision of float32 (oneDNN's fpmath modes), and
settings that bind threads to cores, which makes forked workers share one core (pytorch#99625).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from envbuilder.payload.machine.accelerators import ACCELERATORS, device_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""Intel's recommendation for jemalloc, without the settings that never return memory."""
KEEP_MEMORY = {
    # By default glibc returns large blocks to the system and faults them in again at every step.
    # 32 MiB is the largest threshold that it accepts. (mallopt(3))
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
UNSHARED = (
    "only for machines that nobody shares: waiting threads keep their cores busy, and with another"
    " job on them training took several times as long"
)
"""Where threads may wait actively (OMP_WAIT_POLICY=active, a long KMP_BLOCKTIME)."""

Kind = Literal["setting", "precision", "batch"]


class Limits(Struct, frozen=True, kw_only=True):
    """The payload's CPU limits, as it detected them; `used` is the value of OMP_NUM_THREADS."""

    affinity: int
    decided: int
    physical: int | None = None
    quota: float | None = None
    used: int | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """The report of the payload's `trial --survey` on its environment."""

    threads: Limits
    allocator: str
    allocators: dict[str, str] = {}
    preload: tuple[str, ...] = ()
    glibc: bool = False
    wait_policy: str | None = None
    start_methods: tuple[str, ...] = ()


class Setting(Struct, frozen=True, kw_only=True):
    """A candidate: variables (empty: removed) and arguments for the payload's `trial`.

    One setting per group can be selected. `effect` is what the trial must report, otherwise the
    setting did not take effect. `profile` holds the profile keys that express it; a setting without
    them is only advice. `caution` is where it must not be used. Other precisions and batches are
    reported, but change the workload.
    """

    name: str
    group: str
    variables: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    effect: dict[str, Any] = {}
    kind: Kind = "setting"
    profile: dict[str, Any] = {}
    advice: str = ""
    caution: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Return the setting as arguments of `trial`."""
        pairs = (x for k, v in self.variables.items() for x in ("--set", f"{k}={v}"))
        return (*pairs, *self.arguments)


def candidates(survey: Survey, device: str) -> tuple[Setting, ...]:
    """Return all settings for a device except torch.compile, which has to pass a check first."""
    own = (*_allocators(survey), *_waiting(survey)) if device == "cpu" else ()
    return (*_threads(survey.threads), *own, *_loaders(survey), *_workloads(device))


def _threads(limits: Limits) -> Iterator[Setting]:
    current = limits.used or limits.decided
    counts = {1, limits.physical or limits.decided, limits.affinity, limits.decided} - {current}
    for count in sorted(counts):
        # The best number of threads depends on the host, so it never goes into a profile.
        yield Setting(
            name=f"{count} thread{'s' if count > 1 else ''}",
            group="threads",
            variables={"OMP_NUM_THREADS": str(count)},
            effect={"threads": count},
            advice=f"export OMP_NUM_THREADS={count}",
        )


def _allocators(survey: Survey) -> Iterator[Setting]:
    def allocator(
        name: str, path: str = "", more: Mapping[str, str] | None = None, **keys: Any
    ) -> Setting:
        preload = ":".join(filter(None, (path, *survey.preload)))
        return Setting(
            name=name,
            group="allocator",
            variables={"LD_PRELOAD": preload, **(more or {})},
            effect={"allocator": path or "libc"},
            **keys,
        )

    if survey.allocator != "libc":
        yield allocator("libc's allocator", profile={"preload": []})
    if survey.glibc:
        held = {"preload": [], "environment": dict(KEEP_MEMORY)}
        yield allocator("libc's allocator, keeping memory", more=KEEP_MEMORY, profile=held)
    for name, path in survey.allocators.items():
        if f"lib{name}" in survey.allocator:
            continue
        advised = {"MALLOC_CONF": MALLOC_CONF} if name == "jemalloc" else {}
        for more, suffix in (({}, ""), (advised, ", as advised"))[: 2 if advised else 1]:
            exports = " ".join(f"{k}={v}" for k, v in {"LD_PRELOAD": path, **more}.items())
            # The library belongs to the host and is not a locked file: a profile cannot name it.
            advice = f"export {exports}; or your own profile, which locks and preloads it"
            yield allocator(name + suffix, path, more, advice=advice)


def _waiting(survey: Survey) -> Iterator[Setting]:
    for policy, caution in (("active", UNSHARED), ("passive", "")):
        if (survey.wait_policy or "").lower() != policy:
            variables = {"OMP_WAIT_POLICY": policy}
            yield Setting(
                name=f"OMP_WAIT_POLICY={policy}",
                group="waiting",
                variables=variables,
                profile={"environment": variables},
                caution=caution,
            )


def _loaders(survey: Survey) -> Iterator[Setting]:
    for workers in sorted({0, 1, 2, survey.threads.decided}):
        methods = [m for m in ("fork", "forkserver", "spawn") if m in survey.start_methods]
        for method in methods if workers else [""]:
            noun = "worker" if workers == 1 else "workers"
            context = f', multiprocessing_context="{method}"' if method else ""
            started = ("--start-method", method) if method else ()
            yield Setting(
                name=f"DataLoader, {workers} {noun}{', ' if method else ''}{method}",
                group="loading",
                arguments=("--workers", str(workers), *started),
                effect={"workers": workers, "start_method": method or None},
                advice=f"DataLoader(num_workers={workers}{context})",
            )


def _workloads(device: str) -> tuple[Setting, ...]:
    """Return the settings that depend on the device alone."""
    cpu = device == "cpu"
    sizes, layout = ((128, 256), "contiguous") if cpu else ((256, 1024), "channels_last")
    layouts = Setting(
        name=f"{layout} layout",
        group="layout",
        arguments=("--layout", layout),
        effect={"memory_format": layout},
        advice=f"memory_format=torch.{'contiguous_format' if cpu else layout}",
    )
    order = Setting(
        name="relu before max-pool",
        group="order",
        arguments=("--order", "published"),
        effect={"reordered": None},
        advice="relu before max-pool, as the example is published",
    )
    dropout = Setting(
        name="torch's own dropout",
        group="dropout",
        arguments=("--dropout", "torch"),
        effect={"dropout": None},
        advice="torch.nn.Dropout, as the example is published",
    )
    bfloat16 = Setting(
        name="bfloat16 autocast",
        group="precision",
        arguments=("--bfloat16",),
        effect={"dtypes": "bfloat16"},
        kind="precision",
        advice=f'torch.autocast("{device_of(device)}", dtype=torch.bfloat16)',
    )
    denormals = Setting(
        name="denormals flushed to zero",
        group="denormal",
        arguments=("--flush-denormal",),
        effect={"flush_denormal": True},
        advice="torch.set_flush_denormal(True)",
    )
    batches = (
        Setting(
            name=f"batch {size}",
            group="batch",
            arguments=("--batch", str(size)),
            effect={"batch": size},
            kind="batch",
            advice=f"batch_size={size}; it needs another learning rate",
        )
        for size in sizes
    )
    formed = (layouts,) if ACCELERATORS[device].channels_last else ()
    others = (order, dropout, bfloat16, denormals) if cpu else (order, bfloat16)
    return (*batches, *formed, *others)


def compiled(backend: str) -> Setting:
    """Return torch.compile with a backend whose gradient check passed on this machine."""
    return Setting(
        name=f"torch.compile, {backend}",
        group="compile",
        arguments=("--compile", backend),
        effect={"compile": backend},
        advice=f'model = torch.compile(model, backend="{backend}", dynamic=False)',
    )
