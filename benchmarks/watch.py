"""What watching costs on this machine's CPU: three trainings with and without the hook.

    python benchmarks/watch.py PYTHON [PAIRS]

PYTHON has torch. Both trainings of a pair run at the same time, each on a CPU of its own, and
change places four times a second, so that whatever else this machine does meets both. A pair's
ratio is that of their steps in the same seconds (Linux). Goals: at most 1.05, and 50 MiB more.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = ("perceptron", "convolutions", "transformer")
SECONDS, SWAPPED = 10.0, 0.25
LOSS_AT = 100
"""The step whose loss must be the same in both."""


def train(kind: str) -> None:
    """Train for SECONDS once told to; print the number of steps, the memory, and a loss."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # or steps get slower as the gradients vanish
    if kind == "perceptron":
        inputs = torch.randn(256, 128)
        layers = [nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(256, 10))
    elif kind == "convolutions":
        inputs = torch.randn(64, 3, 32, 32)
        layers = [nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 49, 10))
    else:
        inputs = torch.randn(32, 32, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(2048, 10))
    data = torch.utils.data.TensorDataset(inputs, torch.randint(10, (len(inputs),)))
    batches = torch.utils.data.DataLoader(data, batch_size=len(inputs) // 4)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)

    def epoch() -> Any:
        for batch, labels in batches:
            loss = nn.functional.cross_entropy(net(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    for _ in range(LOSS_AT // 4):
        loss = epoch()
    print(loss.item(), flush=True)
    sys.stdin.readline()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        epoch()
        steps += 4
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(steps / (time.perf_counter() - began), memory / 1024)


def pair(python: str, kind: str, hook: Path, swaps: int) -> tuple[float, float, float]:
    """Return the ratio of the steps without the hook to those with it, MiB more, and ms a step."""
    trainings = []
    for path in (hook, ""):
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)}
        trainings.append(
            subprocess.Popen(
                [python, __file__, "--train", kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=variables,
            )
        )
    losses = {training.stdout.readline() for training in trainings}
    assert len(losses) == 1, f"the losses differ: {losses}"
    cpus = sorted(os.sched_getaffinity(0))[:2]
    for training in trainings:
        training.stdin.write("go\n")
        training.stdin.flush()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        swaps += 1
        # The one that is moved first waits for the other to go: each in turn.
        for number in (0, 1) if swaps % 4 < 2 else (1, 0):
            os.sched_setaffinity(trainings[number].pid, {cpus[(number + swaps) % 2]})
        time.sleep(SWAPPED)
    watched, alone = (tuple(map(float, t.communicate()[0].split())) for t in trainings)
    return alone[0] / watched[0], watched[1] - alone[1], 1000 / alone[0]


def main(python: str, pairs: int) -> None:
    """Print the medians of each training's ratios."""
    from envbuilder.watch.supervise import Session

    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)).laid() as session:
        for kind in KINDS:
            results = [pair(python, kind, session.hook, number) for number in range(pairs)]
            ratios, more, lengths = zip(*results, strict=True)
            print(
                f"{kind:<13} {statistics.median(ratios):5.3f} of the time"
                f" ({min(ratios):5.3f} to {max(ratios):5.3f}), {statistics.median(more):+.0f} MiB,"
                f" steps of {statistics.median(lengths):.2f} ms",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(sys.argv[2])
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
