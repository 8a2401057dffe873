"""An epoch of PyTorch's MNIST example as its users run it, against envbuilder's.

    python benchmarks/example.py [PAIRS] --data DIR [--folder DIR]
    python benchmarks/example.py 3 --data DIR --python EXE --device cuda --epochs 2 --json FILE

Both train the workload of the design: the same net, Adadelta 1.0, batch 64, float32, shuffled, on
all cores or one accelerator. The example transforms one image after the other in a DataLoader: with
torchvision where the interpreter has it, else with its steps written out (decode, to tensor,
normalise); on an accelerator its DataLoader has one worker and pinned memory. Without `--python` it
runs in a plain virtual environment (pip, no preloaded allocator) against the tuned `cpu` profile;
with it both run in that interpreter. Times are of the training pass without evaluation. Alternating
pairs; medians, and the accuracy of both. `--json` is written after each pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.core import resources

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))
REQUIREMENTS = ("torch==2.13.0", "numpy", "pillow")
PROGRAM = '''
import gzip, json, sys, tempfile, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder, device, epochs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def content(name):
    path = folder / name
    if path.exists():
        return path.read_bytes()
    return gzip.decompress(path.with_name(f"{name}.gz").read_bytes())

def numbers(name, offset):
    return torch.frombuffer(bytearray(content(name)), dtype=torch.uint8)[offset:]

class Digits(Dataset):
    """One image after the other, as torchvision's MNIST, ToTensor and Normalize do it."""
    def __init__(self, name):
        self.images = numbers(f"{name}-images-idx3-ubyte", 16).view(-1, 28, 28)
        self.labels = numbers(f"{name}-labels-idx1-ubyte", 8)
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        picture = Image.fromarray(self.images[index].numpy(), mode="L")
        image = torch.from_numpy(numpy.array(picture, numpy.uint8, copy=True))
        image = image.view(28, 28, 1).permute((2, 0, 1)).contiguous().to(torch.float32).div(255)
        mean = torch.as_tensor((0.1307,), dtype=image.dtype).view(-1, 1, 1)
        std = torch.as_tensor((0.3081,), dtype=image.dtype).view(-1, 1, 1)
        return image.clone().sub_(mean).div_(std), int(self.labels[index])

try:
    import torchvision
except ImportError:
    import numpy
    from PIL import Image
    sets = [Digits("train"), Digits("t10k")]
else:
    scratch = tempfile.TemporaryDirectory()
    raw = Path(scratch.name) / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").write_bytes(content(f"{name}-ubyte"))
    tools = torchvision.transforms
    steps = tools.Compose([tools.ToTensor(), tools.Normalize((0.1307,), (0.3081,))])
    sets = [torchvision.datasets.MNIST(raw.parent.parent, t, steps) for t in (True, False)]

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
quick = {} if device == "cpu" else dict(num_workers=1, persistent_workers=True, pin_memory=True)
train = DataLoader(sets[0], batch_size=64, shuffle=True, **quick)
test = DataLoader(sets[1], batch_size=1000, **quick)
net = Net().to(device)
optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
done = []
for _ in range(epochs):
    net.train()
    began = time.perf_counter()
    for number, (images, labels) in enumerate(train):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(net(images), labels)
        loss.backward()
        optimizer.step()
        if number % 10 == 0:
            print("loss", loss.item(), file=sys.stderr)
    loss.item()
    seconds = time.perf_counter() - began
    net.eval()
    with torch.no_grad():
        right = sum((net(i.to(device)).argmax(1) == l.to(device)).sum().item() for i, l in test)
    done.append({"seconds": seconds, "accuracy": right / len(sets[1])})
    schedule.step()
print(json.dumps({"torch": torch.__version__, "data": type(sets[0]).__module__, "epochs": done}))
'''


@dataclass(frozen=True)
class Ways:
    """How the two are run."""

    folder: Path
    data: Path
    device: str
    epochs: int
    python: Path | None
    envbuilder: str


def environment(folder: Path) -> Path:
    """A plain virtual environment with torch, as pip makes it."""
    python = folder / "plain" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "plain")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
    return python


def example(ways: Ways) -> Any:
    """The example's epochs."""
    program = ways.folder / "example.py"
    program.write_text(PROGRAM)
    plain = {k: v for k, v in os.environ.items() if k not in {"LD_PRELOAD", "OMP_NUM_THREADS"}}
    python = ways.python or environment(ways.folder)
    words = [str(python), str(program), str(ways.data), ways.device, str(ways.epochs)]
    done = subprocess.run(words, env=plain, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def ours(ways: Ways) -> Any:
    """The epochs of a verification, from its report."""
    report = ways.folder / "report.json"
    which = ("--backend", "venv") if ways.python is None else ("--python", ways.python, "--force")
    # The shipped subset is no full MNIST: it is what a quick verification takes by itself.
    data = ("--data", ways.data) if _full(ways.data) else ("--quick",)
    words = (
        ways.envbuilder,
        "verify",
        "--profile",
        ways.device,
        *which,
        "--epochs",
        ways.epochs,
        *data,
        "--output",
        report,
    )
    subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, check=True)
    measured = json.loads(report.read_text())
    return {"torch": measured["framework"]["version"], "epochs": measured["training"]["epochs"]}


def _full(data: Path) -> bool:
    return data.resolve() != resources.mnist_subset_dir().resolve()


def summed_up(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Medians and ratios: of the first epoch, which warms up, and of the last."""
    result: dict[str, Any] = {"medians": {}, "ratios": {}}
    for name, index in (("first epoch", 0), ("last epoch", -1)):
        seconds = [[side["epochs"][index]["seconds"] for side in pair] for pair in pairs]
        for side, who in ((0, "example"), (1, "envbuilder")):
            result["medians"][f"{who}, {name}"] = statistics.median(s[side] for s in seconds)
        result["ratios"][name] = statistics.median(s[1] / s[0] for s in seconds)
    return result


def main() -> None:
    """Print both and their ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("pairs", nargs="?", type=int, default=3)
    options.add_argument("--folder", type=Path)
    options.add_argument("--data", type=Path, required=True, help="folder with MNIST's IDX files")
    options.add_argument("--python", type=Path, help="run both in this interpreter")
    options.add_argument("--device", default="cpu", help="also the name of the profile  [cpu]")
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--json", type=Path, help="also write all of it here")
    options.add_argument("--envbuilder", default=ENVBUILDER, help="its command")
    given = options.parse_args()
    pairs: list[tuple[Any, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        ways = Ways(folder, given.data, given.device, given.epochs, given.python, given.envbuilder)
        for _ in range(given.pairs):
            pairs.append((example(ways), ours(ways)))
            if given.json:
                known = {"schema": 1, "device": given.device, **summed_up(pairs), "pairs": pairs}
                given.json.write_text(json.dumps(known, indent=1) + "\n")
    for name, side in (("PyTorch's example", 0), (f"envbuilder, {given.device} profile", 1)):
        epochs = [pair[side]["epochs"][-1] for pair in pairs]
        accuracy = ", ".join(f"{100 * epoch['accuracy']:.2f}" for epoch in epochs)
        rounds = ", ".join(f"{epoch['seconds']:.2f}" for epoch in epochs)
        middle = statistics.median(epoch["seconds"] for epoch in epochs)
        print(f"| {name} | {middle:.2f} s | {rounds} | {accuracy} % |")
    for name, ratio in summed_up(pairs)["ratios"].items():
        print(f"median ratio of the pairs, {name}: {ratio:.2f}×")


if __name__ == "__main__":
    main()
