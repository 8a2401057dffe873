"""Compute the network's loss and gradients by torch in float64, from files and into files.

A folder holds `NAME` in float64 for each parameter, `images` and, as 64-bit integers, `labels`;
each gradient is written as `NAME.gradient`, and the loss is printed.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from envbuilder.payload.numerics import numerics
from envbuilder.payload.training import model


def main(folder: Path) -> None:
    net = numerics.network(torch, model.PUBLISHED).double()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(read(folder / name, torch.float64).view(parameter.shape))
    images = read(folder / "images", torch.float64).view(-1, 1, 28, 28)
    step = numerics.backward(torch, net, net, images, read(folder / "labels", torch.int64))
    for name, gradient in step.gradients.items():
        dense = gradient.contiguous()
        content = ctypes.string_at(dense.data_ptr(), dense.nbytes)
        (folder / f"{name}.gradient").write_bytes(content)
    print(step.loss)


def read(file: Path, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(file.read_bytes()), dtype=dtype)


main(Path(sys.argv[1]))
