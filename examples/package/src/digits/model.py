"""The net."""

from torch import nn


class Reader(nn.Module):
    """Reads a digit in rows of 64 pixels."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.scores = nn.Linear(width, 10)

    def forward(self, images):
        """Return the scores of the ten digits."""
        return self.scores(self.layers(images))
