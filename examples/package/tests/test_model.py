"""The net's scores."""

import torch

from digits.model import Reader


def test_a_score_for_each_digit() -> None:
    assert Reader()(torch.zeros(3, 64)).shape == (3, 10)
