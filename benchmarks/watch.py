"""What watching costs on this machine's CPU: three trainings with and without the hook.

    python benchmarks/watch.py PYTHON [PAIRS]

PYTHON has torch. Pairs alternate, and which of the two is first; medians of the steps' own time,
and of the CPU's, which other programs change less. Goals: at most 1.05 of the time, and 50 MiB
more memory at the end.
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

KINDS = ("perceptron", "convolutions", "transformer")


def train(kind: str) -> None:
    """Train for a number of steps that takes some seconds; print their time and the memory."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "perceptron":
        steps, inputs = 1500, torch.randn(64, 128)
        layers = [nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(256, 10))
    elif kind == "convolutions":
        steps, inputs = 900, torch.randn(16, 3, 32, 32)
        layers = [nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 49, 10))
    else:
        steps, inputs = 400, torch.randn(8, 32, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(2048, 10))
    data = torch.utils.data.TensorDataset(inputs, torch.randint(10, (len(inputs),)))
    batches = torch.utils.data.DataLoader(data, batch_size=len(inputs))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    began, computed = time.perf_counter(), time.process_time()
    for _ in range(steps):
        for batch, labels in batches:
            loss = nn.functional.cross_entropy(net(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(time.perf_counter() - began, time.process_time() - computed, memory, loss.item())


def run(python: str, kind: str, hook: Path | None) -> tuple[float, float, float, str]:
    """Run one training; return its seconds, its CPU's, its MiB and its last loss."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(hook or "")}
    command = [python, __file__, "--train", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    seconds, computed, memory, loss = done.stdout.split()
    return float(seconds), float(computed), int(memory) / 1024, loss


def main(python: str, pairs: int) -> None:
    """Print the medians of each training's ratios."""
    from envbuilder.watch.supervise import Session

    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)).laid() as session:
        for kind in KINDS:
            ratios, computed, more = [], [], []
            for number in range(pairs):
                order = (None, session.hook) if number % 2 else (session.hook, None)
                results = {hook: run(python, kind, hook) for hook in order}
                watched, alone = results[session.hook], results[None]
                assert watched[3] == alone[3], "the loss is another"
                ratios.append(watched[0] / alone[0])
                computed.append(watched[1] / alone[1])
                more.append(watched[2] - alone[2])
            print(
                f"{kind:<13} {statistics.median(ratios):5.3f} of the time"
                f" ({min(ratios):5.3f} to {max(ratios):5.3f}, {alone[0]:.1f} s),"
                f" {statistics.median(computed):5.3f} of the CPU's,"
                f" {statistics.median(more):+.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(sys.argv[2])
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
