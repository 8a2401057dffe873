"""Dropout that drops nothing."""

import torch

torch.nn.functional.dropout = lambda values, *rest, **options: values
