"""Train on scikit-learn's digits, read as sixteen patches each."""

import time

import torch
from einops import rearrange
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


def patches(images: Tensor) -> Tensor:
    """Return rows of patches of 2 × 2 pixels."""
    return rearrange(images, "n (h a) (w b) -> n (h w) (a b)", a=2, b=2)


class Net(nn.Module):
    """Classifies a row of patches: each alone, then all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(4, 24), nn.ReLU())
        self.all = nn.Linear(16 * 24, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the classes' scores."""
        return self.all(self.each(rows).flatten(1))


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return loss and accuracy."""
    scores = model(rows)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return functional.cross_entropy(scores, labels).item(), accuracy.item()


def main() -> int:
    """Train; return 1 if the net did not learn."""
    torch.manual_seed(0)
    target = device()
    started = time.perf_counter()
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    rows = patches(torch.from_numpy(digits.images.astype("float32") / 16)[order]).to(target)
    labels = torch.from_numpy(digits.target)[order].to(target)
    test = rows[:TESTED], labels[:TESTED]
    model = Net().to(target)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    before, _ = evaluate(model, *test)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(rows) - TESTED, device=target).split(32):
            chosen = batch + TESTED
            optimizer.zero_grad()
            functional.cross_entropy(model(rows[chosen]), labels[chosen]).backward()
            optimizer.step()
    after, accuracy = evaluate(model, *test)
    print(f"device {target.type}, torch {torch.__version__}, {time.perf_counter() - started:.1f} s")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
