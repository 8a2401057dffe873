"""A small training with one fault, or an honest one, as somebody would write it.

python watched_training.py FAULT [DEVICE]
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).parent))

FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
MORE = {"random labels": 400, "no gradients": 1500, "other model": 1500, "heads in turn": 1500}
MORE |= dict.fromkeys(("teacher", "rate zero from step 17", "eval left on", "one sample"), 1500)
STEPS = MORE.get(FAULT, 60)
"""Two sampled steps lie up to a second apart, which is long on a fast machine."""
TURNS = itertools.count()
CASTS = "cpu" if DEVICE == "other" else DEVICE
"""The device of autocast; there is none for a device of tests."""


class Rows(torch.utils.data.Dataset):
    """Points of ten classes; `pause` is how long reading one takes."""

    def __init__(self, count: int, pause: float) -> None:
        directions = torch.randn(64, 10)
        self.inputs = torch.randn(count, 64)
        self.labels = (self.inputs @ directions).argmax(1)
        if FAULT == "random labels":
            self.inputs, self.labels = self.inputs * 1e-3, torch.randint(10, (count,))
        self.pause = pause

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pause:
            time.sleep(self.pause)
        return self.inputs[index], self.labels[index]


class Net(nn.Module):
    """Two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.head = nn.Linear(512, 10)
        self.heads = nn.ModuleList()
        if FAULT == "heads in turn":
            self.heads.extend([self.head, *(nn.Linear(512, 10) for _ in range(15))])
        if FAULT == "eval left on":
            self.backbone.append(nn.Dropout(0.1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        frozen = torch.no_grad() if FAULT == "no gradients" else contextlib.nullcontext()
        lost = FAULT == "autocast lost"
        whole = torch.autocast(CASTS, enabled=False) if lost else contextlib.nullcontext()
        with frozen, whole:
            features = self.backbone(inputs)
        if self.heads:
            return self.heads[next(TURNS) // 20 % 16](features)
        if FAULT == "teacher":
            with torch.no_grad(), torch.autocast(CASTS, torch.bfloat16):
                self.backbone(inputs)
        if FAULT == "layer left":
            return self.head(features.cpu()).to(DEVICE)
        return self.head(features)


def falls_back(features: torch.Tensor) -> torch.Tensor:
    """Do as MPS does with an operator that it lacks."""
    warnings.warn(
        "The operator 'aten::linalg_qr' is not currently supported on the MPS backend and will fall"
        " back to run on the CPU. This may have performance implications.",
        stacklevel=2,
    )
    return features


def optimizer_of(net: Net) -> torch.optim.Optimizer:
    """Return the optimizer, of what it should be."""
    parameters = list(net.parameters())
    if FAULT == "other model":
        parameters = list(Net().to(DEVICE).parameters())
    rates = {"not a number": 1e12, "rate zero": 0.0}
    return torch.optim.SGD(parameters, lr=rates.get(FAULT, 0.2))


def main() -> None:  # noqa: C901 (a script, from top to bottom)
    """Train."""
    if DEVICE == "other":
        import second_device  # noqa: F401
    torch.manual_seed(0)
    net = Net()
    if FAULT != "left on the CPU":
        net = net.to(DEVICE)
    if FAULT == "layer left":
        net.head = net.head.cpu()
    if FAULT == "float64":
        net = net.double()
    if FAULT == "frozen backbone":
        net.backbone.requires_grad_(False)
    if FAULT == "eval left on":
        net.eval()
    place = "cpu" if FAULT == "left on the CPU" else DEVICE
    optimizer = optimizer_of(net)
    slow = {"slow reading": 2e-3, "slow workers": 4e-3}.get(FAULT, 0.0)
    size = 1 if FAULT == "one sample" else 64
    workers = 1 if FAULT in {"slow workers", "workers"} else 0
    data = torch.utils.data.DataLoader(
        Rows(size * STEPS, slow), batch_size=size, num_workers=workers, shuffle=True
    )
    casts = FAULT in {"autocast", "autocast lost", "scaled"}
    dtype = torch.float16 if FAULT == "scaled" else torch.bfloat16
    scaler = torch.amp.GradScaler(DEVICE, enabled=FAULT == "scaled")
    for step, (inputs, labels) in enumerate(data, 1):
        if FAULT == "sent twice":
            net(inputs.to(place))
        inputs = inputs.to(place)  # noqa: PLW2901
        labels = labels.to(place)  # noqa: PLW2901
        if FAULT == "copied twice":
            inputs = inputs.cpu().to(place)  # noqa: PLW2901
        if FAULT == "float64":
            inputs = inputs.double()  # noqa: PLW2901
        with torch.autocast(CASTS, dtype) if casts else contextlib.nullcontext():
            outputs = net(inputs)
            if FAULT == "fallback":
                outputs = falls_back(outputs)
            loss = nn.functional.cross_entropy(outputs.float() if casts else outputs, labels)
        if FAULT == "accumulation":
            (loss / 2).backward()
            if step % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        else:
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if FAULT == "rate zero from step 17" and step == 17:
            optimizer.param_groups[0]["lr"] = 0.0
        if FAULT == "evaluation" and step % 20 == 0:
            with torch.no_grad():
                for seen, _ in data:
                    net(seen.to(place))
    print(f"loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
