"""Train a small convolutional net on scikit-learn's digits."""

import time

import torch
from einops.layers.torch import Rearrange
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

EPOCHS = 12
BATCH = 64


def device() -> torch.device:
    """Return the accelerator that PyTorch sees (CUDA and ROCm, XPU, MPS), else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


def data(target: torch.device) -> list[Tensor]:
    """Return images and labels to train with, then those to test with."""
    digits = load_digits()
    split = train_test_split(
        digits.data.astype("float32") / 16, digits.target, test_size=0.2, random_state=0
    )
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, split)
    return [t.to(target) for t in (train_images, train_labels, test_images, test_labels)]


def net() -> nn.Module:
    """Return an untrained net, which takes rows of 64 pixels."""
    return nn.Sequential(
        Rearrange("n (h w) -> n 1 h w", h=8),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Rearrange("n c h w -> n (c h w)"),
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return loss and accuracy."""
    scores = model(images)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return functional.cross_entropy(scores, labels).item(), accuracy.item()


def main() -> int:
    """Train; return 1 if the net did not learn."""
    torch.manual_seed(0)
    target = device()
    images, labels, *test = data(target)
    model = net().to(target)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    before, _ = evaluate(model, *test)
    started = time.perf_counter()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images), device=target).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    after, accuracy = evaluate(model, *test)
    print(f"device {target.type}, torch {torch.__version__}, {time.perf_counter() - started:.1f} s")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
