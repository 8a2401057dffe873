"""Train the net: `python -m digits.train`."""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

from digits.device import device
from digits.model import Reader

EPOCHS = 15


def parts() -> list:
    """Return the digits to train with and to test with."""
    digits = load_digits()
    images = torch.from_numpy(digits.data.astype("float32") / 16)
    whole = TensorDataset(images, torch.from_numpy(digits.target))
    return random_split(whole, (0.8, 0.2), torch.Generator().manual_seed(0))


@torch.no_grad()
def evaluate(model: Reader, part, target: torch.device) -> tuple[float, float]:
    """Return loss and accuracy."""
    images, labels = (t.to(target) for t in part[:])
    scores = model(images)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return functional.cross_entropy(scores, labels).item(), accuracy.item()


def main() -> int:
    """Train; return 1 if the net did not learn."""
    torch.manual_seed(0)
    target = device()
    training, test = parts()
    model = Reader().to(target)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    before, _ = evaluate(model, test, target)
    for _ in range(EPOCHS):
        for images, labels in DataLoader(training, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(images.to(target)), labels.to(target)).backward()
            optimizer.step()
    after, accuracy = evaluate(model, test, target)
    print(f"device {target.type}, torch {torch.__version__}")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
