"""What watching costs on this machine: three trainings with and without the hook.

    python benchmarks/watch.py PYTHON [PAIRS] [DEVICE]

PYTHON has torch. Both trainings of a pair are started once and take turns of a second, each the
first of every second pair: a pair's ratio is that of their steps in a second of CPU time, or of a
GPU's time. Goals: at most 1.05 of the time, and 50 MiB more.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KINDS = ("perceptron", "convolutions", "transformer")
TURN = 1.0
LOSS_AT = 100
"""The step whose loss must be the same in both."""


def train(kind: str, device: str) -> None:
    """Train for so many seconds as a line says; print a loss, then rates and memory."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # or steps get slower as the gradients vanish
    wide, deep = (1, 2) if device == "cpu" else (8, 8)
    if kind == "perceptron":
        inputs = torch.randn(256, 128)
        layers = [nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(256, 10))
    elif kind == "convolutions":
        inputs = torch.randn(64 * wide, 3, 32, 32)
        layers = [nn.Conv2d(3, 32 * wide, 3, 2), nn.ReLU(), nn.Conv2d(32 * wide, 64, 3, 2)]
        net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(64 * 49, 10))
    else:
        inputs = torch.randn(32 * wide, 32, 64 * wide)
        layer = nn.TransformerEncoderLayer(64 * wide, 4, 128 * wide, batch_first=True)
        encoder = nn.TransformerEncoder(layer, deep)
        net = nn.Sequential(encoder, nn.Flatten(), nn.Linear(2048 * wide, 10))
    net = net.to(device)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(10, (len(inputs),)))
    batches = torch.utils.data.DataLoader(data, batch_size=len(inputs) // 4)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)

    def epoch() -> Any:
        for batch, labels in batches:
            outputs = net(batch.to(device, non_blocking=True))
            loss = nn.functional.cross_entropy(outputs, labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    for _ in range(LOSS_AT // 4):
        loss = epoch()
    print(loss.item(), flush=True)
    clock = time.process_time if device == "cpu" else time.perf_counter
    for line in sys.stdin:
        steps = 0
        began = clock()
        until = time.perf_counter() + float(line)
        while time.perf_counter() < until:
            loss = epoch()
            steps += 4
        loss.item()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(steps / (clock() - began), memory / 1024, flush=True)


@contextlib.contextmanager
def waiting(python: str, kind: str, hook: Path, device: str) -> Iterator[list[Any]]:
    """Start both trainings, the watched one first, up to where they wait to be told to train."""
    trainings: list[Any] = [
        subprocess.Popen(
            [python, __file__, "--train", kind, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)},
        )
        for path in (hook, "")
    ]
    losses = {training.stdout.readline() for training in trainings}
    assert len(losses) == 1 or device != "cpu", f"the losses differ: {losses}"
    yield trainings
    for training in trainings:
        training.communicate()


def go(training: Any, seconds: float) -> None:
    """Tell a training to train."""
    training.stdin.write(f"{seconds}\n")
    training.stdin.flush()


def rate_and_memory(training: Any) -> tuple[float, float]:
    """Return steps per second and MiB of a training that was told to train."""
    rate, memory = map(float, training.stdout.readline().split())
    return rate, memory


def pairs_of(
    python: str, kind: str, hook: Path, device: str, count: int
) -> list[tuple[float, float, float]]:
    """Return each pair's ratio of steps without the hook to those with it, MiB more, ms a step."""
    with waiting(python, kind, hook, device) as trainings:
        measured = [in_turn(trainings, number) for number in range(count)]
    return [
        (alone[0] / watched[0], watched[1] - alone[1], 1000 / alone[0])
        for watched, alone in measured
    ]


def in_turn(trainings: list[Any], number: int) -> list[tuple[float, float]]:
    """Have each train while the other waits; every second time, the watched one is first."""
    found = {}
    for index in (0, 1) if number % 2 else (1, 0):
        go(trainings[index], TURN)
        found[index] = rate_and_memory(trainings[index])
    return [found[0], found[1]]


def main(python: str, pairs: int, device: str) -> None:
    """Print the medians of each training's ratios."""
    from envbuilder.commands.watch import Session

    with tempfile.TemporaryDirectory() as folder, Session.laid(Path(folder)) as session:
        for kind in KINDS:
            measured = pairs_of(python, kind, session.hook, device, pairs)
            ratios, more, lengths = zip(*measured, strict=True)
            print(
                f"{kind:<13} {statistics.median(ratios):5.3f} of the time"
                f" ({min(ratios):5.3f} to {max(ratios):5.3f}), {statistics.median(more):+.0f} MiB,"
                f" steps of {statistics.median(lengths):.2f} ms",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(*sys.argv[2:])
    else:
        count = int(sys.argv[2]) if len(sys.argv) > 2 else 31
        main(sys.argv[1], count, sys.argv[3] if len(sys.argv) > 3 else "cpu")
