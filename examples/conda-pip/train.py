"""Train on scikit-learn's digits, moved and turned at random."""

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


def augmented(images: Tensor) -> Tensor:
    """Return the images, each turned by up to some 10° and moved by up to half a pixel."""
    angles = torch.empty(len(images), device=images.device).uniform_(-0.18, 0.18)
    moves = torch.empty(len(images), 2, device=images.device).uniform_(-0.12, 0.12)
    sine, cosine = angles.sin(), angles.cos()
    rows = (cosine, -sine, moves[:, 0]), (sine, cosine, moves[:, 1])
    maps = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


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
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.from_numpy(digits.images.astype("float32") / 16)[order, None].to(target)
    labels = torch.from_numpy(digits.target)[order].to(target)
    test = images[:TESTED], labels[:TESTED]
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(target)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.eval()
    before, _ = evaluate(model, *test)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images) - TESTED, device=target).split(32):
            chosen = batch + TESTED
            optimizer.zero_grad()
            functional.cross_entropy(model(augmented(images[chosen])), labels[chosen]).backward()
            optimizer.step()
    model.eval()
    after, accuracy = evaluate(model, *test)
    print(f"device {target.type}, torch {torch.__version__}")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
