"""Train on scikit-learn's digits, and keep each run in a database."""

import os
import sqlite3
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

EPOCHS = 20
TESTED = 360


def device() -> torch.device:
    """Return the accelerator that PyTorch sees (CUDA and ROCm, XPU, MPS), else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


@torch.no_grad()
def evaluate(model: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return loss and accuracy."""
    scores = model(pixels)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return functional.cross_entropy(scores, labels).item(), accuracy.item()


def keep(path: Path, kind: str, accuracy: float) -> None:
    """Add a run to the database."""
    with sqlite3.connect(path) as database:
        database.execute("create table if not exists runs (device text, accuracy real)")
        database.execute("insert into runs values (?, ?)", (kind, accuracy))


def main() -> int:
    """Train; return 1 if the net did not learn."""
    torch.manual_seed(0)
    target = device()
    started = time.perf_counter()
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    pixels = torch.from_numpy(digits.data.astype("float32") / 16)[order].to(target)
    labels = torch.from_numpy(digits.target)[order].to(target)
    test = pixels[:TESTED], labels[:TESTED]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(target)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    before, _ = evaluate(model, *test)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(pixels) - TESTED, device=target).split(32):
            chosen = batch + TESTED
            optimizer.zero_grad()
            functional.cross_entropy(model(pixels[chosen]), labels[chosen]).backward()
            optimizer.step()
    after, accuracy = evaluate(model, *test)
    keep(Path(os.environ.get("RUNS", "runs.db")), target.type, accuracy)
    print(f"device {target.type}, torch {torch.__version__}, {time.perf_counter() - started:.1f} s")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
