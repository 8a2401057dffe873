"""Derive settings worth a trial from the payload's survey of its environment. Pure.

Sources of the settings: hardware notes, CPU knobs. Excluded: settings that silently lower the
precision of float32 (oneDNN's fpmath modes), and settings that bind threads to cores, which makes
forked workers share one core (pytorch#99625).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.payload.machine.accelerators import ACCELERATORS, device_of
from envbuilder.verify.tuning.rules import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def read(report: object) -> Survey:
    """Return a survey as typed data; raise `ValueError` if it is not valid."""
    try:
        return decoding.convert(report, Survey)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a survey: {error}") from error


def candidates(survey: Survey, device: str) -> tuple[Setting, ...]:
    """Return all settings for a device except torch.compile, which has to pass a check first."""
    return (
        *_threads(survey.threads),
        *(_allocators(survey) if device == "cpu" else ()),
        *(_waiting(survey) if device == "cpu" else ()),
        *_loaders(survey),
        *_batches(device),
        *_forms(device),
        *_arithmetic(device),
    )


def compiled(backend: str) -> Setting:
    """Return torch.compile with a backend whose gradient check passed on this machine."""
    return Setting(
        name=f"torch.compile, {backend}",
        group="compile",
        arguments=("--compile", backend),
        effect={"compile": backend},
        advice=f'model = torch.compile(model, backend="{backend}", dynamic=False)',
    )


def _threads(limits: Limits) -> Iterator[Setting]:
    now = limits.used or limits.decided
    counts = {1, limits.physical or limits.decided, limits.affinity, limits.decided} - {now}
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
    def preloading(*first: str) -> dict[str, str]:
        return {"LD_PRELOAD": ":".join([*first, *survey.preload])}

    none: dict[str, Any] = {"preload": []}
    if survey.allocator != "libc":
        yield Setting(
            name="libc's allocator",
            group="allocator",
            variables=preloading(),
            effect={"allocator": "libc"},
            profile=none,
        )
    if survey.glibc:
        yield Setting(
            name="libc's allocator, keeping memory",
            group="allocator",
            variables={**preloading(), **KEEP_MEMORY},
            effect={"allocator": "libc"},
            profile={**none, "environment": dict(KEEP_MEMORY)},
        )
    for name, path in survey.allocators.items():
        if f"lib{name}" in survey.allocator:
            continue
        yield _preloaded(name, path, preloading(path), {})
        if name == "jemalloc":
            yield _preloaded(name, path, preloading(path), {"MALLOC_CONF": MALLOC_CONF})


def _preloaded(name: str, path: str, variables: dict[str, str], more: dict[str, str]) -> Setting:
    exports = " ".join(f"{k}={v}" for k, v in {"LD_PRELOAD": path, **more}.items())
    return Setting(
        name=f"{name}{', as advised' if more else ''}",
        group="allocator",
        variables={**variables, **more},
        # The library belongs to the host and is not a locked file: a profile cannot name it.
        advice=f"export {exports}; or your own profile, which locks and preloads it",
        effect={"allocator": path},
    )


def _waiting(survey: Survey) -> Iterator[Setting]:
    for policy in ("active", "passive"):
        if (survey.wait_policy or "").lower() != policy:
            yield Setting(
                name=f"OMP_WAIT_POLICY={policy}",
                group="waiting",
                variables={"OMP_WAIT_POLICY": policy},
                profile={"environment": {"OMP_WAIT_POLICY": policy}},
                caution=UNSHARED if policy == "active" else "",
            )


def _loaders(survey: Survey) -> Iterator[Setting]:
    for workers in sorted({0, 1, 2, survey.threads.decided}):
        methods = [m for m in ("fork", "forkserver", "spawn") if m in survey.start_methods]
        for method in methods if workers else [""]:
            words = f"{workers} worker{'s' if workers != 1 else ''}"
            yield Setting(
                name=f"DataLoader, {words}{', ' if method else ''}{method}",
                group="loading",
                arguments=(
                    *("--workers", str(workers)),
                    *(["--start-method", method] if method else []),
                ),
                effect={"workers": workers, "start_method": method or None},
                advice=f"DataLoader(num_workers={workers}"
                + (f', multiprocessing_context="{method}")' if method else ")"),
            )


def _batches(device: str) -> Iterator[Setting]:
    for size in (128, 256) if device == "cpu" else (256, 1024):
        yield Setting(
            name=f"batch {size}",
            group="batch",
            arguments=("--batch", str(size)),
            effect={"batch": size},
            kind="batch",
            advice=f"batch_size={size}; it needs another learning rate",
        )


def _forms(device: str) -> Iterator[Setting]:
    layout = "contiguous" if device == "cpu" else "channels_last"
    named = "contiguous_format" if device == "cpu" else layout
    if ACCELERATORS[device].channels_last:
        yield Setting(
            name=f"{layout} layout",
            group="layout",
            arguments=("--layout", layout),
            effect={"memory_format": layout},
            advice=f"memory_format=torch.{named}",
        )
    yield Setting(
        name="relu before max-pool",
        group="order",
        arguments=("--order", "published"),
        effect={"reordered": None},
        advice="relu before max-pool, as the example is published",
    )
    if device == "cpu":
        yield Setting(
            name="torch's own dropout",
            group="dropout",
            arguments=("--dropout", "torch"),
            effect={"dropout": None},
            advice="torch.nn.Dropout, as the example is published",
        )


def _arithmetic(device: str) -> Iterator[Setting]:
    yield Setting(
        name="bfloat16 autocast",
        group="precision",
        arguments=("--bfloat16",),
        effect={"dtypes": "bfloat16"},
        kind="precision",
        advice=f'torch.autocast("{device_of(device)}", dtype=torch.bfloat16)',
    )
    if device == "cpu":
        yield Setting(
            name="denormals flushed to zero",
            group="denormal",
            arguments=("--flush-denormal",),
            effect={"flush_denormal": True},
            advice="torch.set_flush_denormal(True)",
        )
