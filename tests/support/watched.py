"""Watched trainings as they would be measured: an honest one, and what is changed in it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from envbuilder.watch.model import (
    Copy,
    Device,
    Gpu,
    Loader,
    Machine,
    Observed,
    Placed,
    Source,
    Watched,
    Work,
)

BATCH = "(32, 784)"


def placed(device: str = "cuda:0", dtype: str = "float32", size: int = 4 << 20) -> Placed:
    return Placed(device=device, dtype=dtype, bytes=size)


def work(
    device: str = "cuda:0", dtype: str = "float32", flops: int = 10**12, operator: str = "aten::mm"
) -> Work:
    return Work(operator=operator, device=device, dtype=dtype, flops=flops, seconds=0.2)


def copy(where: str = "train.py:31", source: str = "cpu", **changes: Any) -> Copy:
    target = "cuda:0" if source == "cpu" else "cpu"
    known = Copy(source=source, target=target, calls=5, bytes=5 * 100_352, shape=BATCH, where=where)
    return replace(known, **changes)


def observed(**changes: Any) -> Observed:
    """An honest process: a bare loop on the first GPU."""
    known = Observed(
        framework="torch",
        version="2.14.1+cu130",
        pid=4242,
        finished=True,
        seconds=70.0,
        threads=8,
        devices=(Device(device="cpu"), Device(device="cuda:0", title="A GPU", peak=1 << 30)),
        peak_rss=1 << 31,
        optimizers=1,
        steps=1200,
        training_seconds=60.0,
        samples=38_400,
        loader=Loader(batches=1200, waited=1.2, workers=4),
        windows=5,
        window_seconds=0.5,
        overhead_seconds=0.2,
        parameters=(placed(),),
        trainable=6,
        without_gradient=0,
        gradient_looks=64,
        changed_at=1190,
        work=(
            work(),
            Work(operator="aten::add", device="cpu", dtype="float32", flops=0, seconds=0.001),
        ),
        copies=(copy(),),
        losses=falling(),
    )
    return replace(known, **changes)


def on_cpu(**changes: Any) -> Observed:
    """An honest process on the CPU."""
    return observed(
        **{
            "devices": (Device(device="cpu"),),
            "parameters": (placed("cpu"),),
            "work": (work("cpu"),),
            "copies": (),
            **changes,
        }
    )


def falling(start: float = 2.3, end: float = 0.2, points: int = 100) -> Any:
    """Losses of every twelfth step, with some noise."""
    return tuple(
        (12 * n + 1, start + (end - start) * n / (points - 1) + 0.01 * (n % 3))
        for n in range(points)
    )


def watched(*processes: Observed, **changes: Any) -> Watched:
    """A report of these processes, or of an honest one, before it is judged."""
    known = Watched(
        envbuilder="0.1.0",
        time="20261126T220000Z",
        host="node-1",
        command=("python", "train.py"),
        profile="cuda",
        backend="venv",
        fingerprint="52a7ad1d9ed3" + "0" * 52,
        lock="ab" * 32,
        project=Source(commit="c" * 40, is_clean=True),
        requested="cuda",
        exit_code=0,
        seconds=75.0,
        machine=Machine(
            cpus=8,
            throttled_seconds=0.0,
            other_seconds=10.0,
            gpus=(Gpu(index=0, name="A GPU", utilization=0.9, watts=300.0),),
        ),
        processes=processes or (observed(),),
    )
    return replace(known, **changes)
