"""An epoch of PyTorch's MNIST example as its users run it, against the tuned `cpu` profile.

    python benchmarks/example.py [PAIRS] [--folder DIR]

Both train the workload of the design: the same net, Adadelta 1.0, batch 64, float32, shuffled, on
all cores. The example runs in a plain virtual environment (pip, no preloaded allocator) with a
DataLoader that transforms one image after the other as torchvision does (decode, to tensor,
normalise); torchvision itself has no CPU wheel here, so its steps are written out. Times are of the
training pass without evaluation. Alternating pairs; medians, and the accuracy of both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))
REQUIREMENTS = ("torch==2.13.0", "numpy", "pillow")
PROGRAM = '''
import json, sys, time
from pathlib import Path
import numpy, torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

def read(path, offset):
    return torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8)[offset:].copy())

class Digits(Dataset):
    """One image after the other, as torchvision's MNIST, ToTensor and Normalize do it."""
    def __init__(self, folder, name):
        self.images = read(Path(folder) / f"{name}-images-idx3-ubyte", 16).view(-1, 28, 28)
        self.labels = read(Path(folder) / f"{name}-labels-idx1-ubyte", 8)
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        picture = Image.fromarray(self.images[index].numpy(), mode="L")
        image = torch.from_numpy(numpy.array(picture, numpy.uint8, copy=True))
        image = image.view(28, 28, 1).permute((2, 0, 1)).contiguous().to(torch.float32).div(255)
        mean = torch.as_tensor((0.1307,), dtype=image.dtype).view(-1, 1, 1)
        std = torch.as_tensor((0.3081,), dtype=image.dtype).view(-1, 1, 1)
        return image.clone().sub_(mean).div_(std), int(self.labels[index])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)
    def forward(self, x):
        x = nn.functional.relu(self.conv2(nn.functional.relu(self.conv1(x))))
        x = self.dropout1(nn.functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(nn.functional.relu(self.fc1(x)))
        return nn.functional.log_softmax(self.fc2(x), dim=1)

torch.manual_seed(1)
train = DataLoader(Digits(sys.argv[1], "train"), batch_size=64, shuffle=True)
test = DataLoader(Digits(sys.argv[1], "t10k"), batch_size=1000)
net = Net()
optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
net.train()
began = time.perf_counter()
for number, (images, labels) in enumerate(train):
    optimizer.zero_grad()
    loss = nn.functional.nll_loss(net(images), labels)
    loss.backward()
    optimizer.step()
    if number % 10 == 0:
        print("loss", loss.item(), file=sys.stderr)
seconds = time.perf_counter() - began
net.eval()
with torch.no_grad():
    right = sum((net(i).argmax(1) == l).sum().item() for i, l in test)
print(json.dumps({"seconds": seconds, "accuracy": right / 10000}))
'''


def environment(folder: Path) -> Path:
    """A plain virtual environment with torch, as pip makes it."""
    python = folder / "plain" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "plain")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
    return python


def example(python: Path, folder: Path, data: Path) -> dict[str, float]:
    """One epoch of the example."""
    program = folder / "example.py"
    program.write_text(PROGRAM)
    plain = {k: v for k, v in os.environ.items() if k not in {"LD_PRELOAD", "OMP_NUM_THREADS"}}
    done = subprocess.run(
        [str(python), str(program), str(data)], env=plain, capture_output=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def tuned(folder: Path, data: Path) -> dict[str, float]:
    """One epoch of the profile, from its report."""
    report = folder / "report.json"
    subprocess.run(
        [
            *(ENVBUILDER, "verify", "--profile", "cpu", "--backend", "venv", "--epochs", "1"),
            *("--data", str(data), "--output", str(report)),
        ],
        capture_output=True,
        check=True,
    )
    first = json.loads(report.read_text())["training"]["epochs"][0]
    return {"seconds": first["seconds"], "accuracy": first["accuracy"]}


def main() -> None:
    """Print both and their ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("pairs", nargs="?", type=int, default=3)
    options.add_argument("--folder", type=Path)
    options.add_argument("--data", type=Path, required=True, help="folder with MNIST's IDX files")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        python = environment(folder)
        pairs = [
            (example(python, folder, given.data), tuned(folder, given.data))
            for _ in range(given.pairs)
        ]
    for name, side in (("PyTorch's example", 0), ("envbuilder, cpu profile", 1)):
        seconds = [pair[side]["seconds"] for pair in pairs]
        accuracy = [f"{100 * pair[side]['accuracy']:.2f}" for pair in pairs]
        rounds = ", ".join(f"{s:.1f}" for s in seconds)
        middle = statistics.median(seconds)
        print(f"| {name} | {middle:.1f} s | {rounds} | {', '.join(accuracy)} % |")
    ratio = statistics.median(p[1]["seconds"] / p[0]["seconds"] for p in pairs)
    print(f"median ratio of the pairs: {ratio:.2f}×")


if __name__ == "__main__":
    main()
