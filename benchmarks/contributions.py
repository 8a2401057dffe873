"""What each setting of the tuned `cpu` profile contributes to an epoch, one left out at a time.

    python benchmarks/contributions.py [ROUNDS] --data DIR

Trials of the built environment (`payload trial`, 150 timed steps each), all ways in turns; medians
of images a second and of the ratio to the profile within a round. "none of these" leaves out all of
the first five and loads batches with a DataLoader.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import native

PLAIN = ("--layout", "contiguous", "--order", "published", "--dropout", "torch")
WAYS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "the profile": ((), {}),
    "without tcmalloc": ((), {"LD_PRELOAD": ""}),
    "without channels-last": (("--layout", "contiguous"), {}),
    "relu before max-pool, as published": (("--order", "published"), {}),
    "torch's own dropout": (("--dropout", "torch"), {}),
    "images through a DataLoader": (("--workers", "0"), {}),
    "none of these": ((*PLAIN, "--workers", "0"), {"LD_PRELOAD": ""}),
    "also: large pages (THP_MEM_ALLOC_ENABLE)": ((), {"THP_MEM_ALLOC_ENABLE": "1"}),
    "also: flush denormals": (("--flush-denormal",), {}),
    "also: OMP_WAIT_POLICY=active": ((), {"OMP_WAIT_POLICY": "active"}),
}


def rate(prefix: Path, data: Path, options: tuple[str, ...], changes: dict[str, str]) -> float:
    """Images a second of one trial."""
    always = ("trial", "--device", "cpu", "--order", "pool-first", "--layout", "channels_last")
    environment = {"LD_PRELOAD": native.allocator(prefix), **changes}
    told = native.report(prefix, (*always, "--data", str(data), *options), environment)
    value: float = told["samples_per_second"]
    return value


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("rounds", nargs="?", type=int, default=5)
    options.add_argument("--data", type=Path, required=True, help="folder with MNIST's IDX files")
    given = options.parse_args()
    prefix = native.build()
    rounds = [
        {name: rate(prefix, given.data, *way) for name, way in WAYS.items()}
        for _ in range(given.rounds)
    ]
    print("| trial | images/s | of the profile |\n|---|---|---|")
    for name in WAYS:
        middle = statistics.median(r[name] for r in rounds)
        ratio = statistics.median(r[name] / r["the profile"] for r in rounds)
        print(f"| {name} | {middle:,.0f} | {ratio:.2f}× |")


if __name__ == "__main__":
    main()
