"""Train on scikit-learn's digits with Lightning's Trainer, and log to a CSV file."""

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split


class Reader(lightning.LightningModule):
    """Reads a digit of 8×8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        images, labels = batch
        loss = functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _) -> None:
        """Log loss and accuracy of a batch."""
        images, labels = batch
        scores = self.net(images)
        self.log("loss", functional.cross_entropy(scores, labels))
        self.log("accuracy", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> int:
    """Train; return 1 if the net did not learn."""
    lightning.seed_everything(0)
    digits = load_digits()
    images = torch.from_numpy(digits.data.astype("float32") / 16)
    whole = TensorDataset(images, torch.from_numpy(digits.target))
    training, test = random_split(whole, (0.8, 0.2))
    tests = DataLoader(test, batch_size=len(test))
    trainer = lightning.Trainer(
        max_epochs=15,
        accelerator="auto",
        devices=1,
        logger=CSVLogger("logs"),
        enable_checkpointing=False,
        enable_progress_bar=False,
        log_every_n_steps=10,
    )
    model = Reader()
    before = trainer.validate(model, tests, verbose=False)[0]
    trainer.fit(model, DataLoader(training, batch_size=64, shuffle=True), tests)
    after = trainer.validate(model, tests, verbose=False)[0]
    print(f"device {trainer.strategy.root_device.type}, torch {torch.__version__}")
    print(
        f"loss {before['loss']:.3f} -> {after['loss']:.3f}, accuracy {after['accuracy']:.3f},"
        f" {trainer.logger.log_dir}"
    )
    return 0 if after["loss"] < before["loss"] and after["accuracy"] > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
