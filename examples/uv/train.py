"""Train an autoencoder on scikit-learn's digits, then a classifier on its codes."""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from tqdm import trange

EPOCHS = 60


def device() -> torch.device:
    """Return the accelerator that PyTorch sees (CUDA and ROCm, XPU, MPS), else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


def nets() -> tuple[nn.Module, nn.Module]:
    """Return an encoder of 64 pixels into 12 numbers, and its decoder."""
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 12))
    decoder = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())
    return encoder, decoder


def main() -> int:
    """Train; return 1 if nothing was learned."""
    torch.manual_seed(0)
    target = device()
    pixels, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        pixels.astype("float32") / 16, labels, test_size=0.2, random_state=0
    )
    images, held_out = torch.from_numpy(train).to(target), torch.from_numpy(test).to(target)
    encoder, decoder = (net.to(target) for net in nets())
    both = nn.Sequential(encoder, decoder)
    optimizer = torch.optim.Adam(both.parameters(), lr=3e-3)

    def loss() -> float:
        with torch.no_grad():
            return functional.mse_loss(both(held_out), held_out).item()

    before = loss()
    for _ in trange(EPOCHS, desc="epochs", disable=None):
        for batch in images[torch.randperm(len(images), device=target)].split(128):
            optimizer.zero_grad()
            functional.mse_loss(both(batch), batch).backward()
            optimizer.step()
    after = loss()
    with torch.no_grad():
        codes, test_codes = (encoder(part).cpu().numpy() for part in (images, held_out))
    classifier = LogisticRegression(max_iter=2000).fit(codes, train_labels)
    accuracy = classifier.score(test_codes, test_labels)
    print(f"device {target.type}, torch {torch.__version__}")
    print(f"loss {before:.4f} -> {after:.4f}, accuracy {accuracy:.3f}")
    return 0 if after < before / 2 and accuracy > 0.85 else 1


if __name__ == "__main__":
    raise SystemExit(main())
