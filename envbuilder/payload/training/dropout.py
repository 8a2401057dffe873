"""Dropout for the CPU, with random masks at an eighth of the usual cost.

torch draws the masks of its own dropout in one thread there, a 64-bit number for each element: 4 of
the 24 ms of a training step with torch 2.13.0+cpu (docs/evidence/benchmarks.md). Eight elements
can share one number, since a quarter and a half are whole numbers of 256ths: a byte is below 64
with a probability of exactly a quarter.
"""

from __future__ import annotations

from typing import Any


def drop(torch: Any, values: Any, share: float) -> Any:
    """Return dense values, each set to 0 with probability ``share``, else divided by 1 - ``share``.

    The result has the values' shape and memory layout. ``share`` is a whole number of 256ths below
    1 (`layer` checks that).
    """
    size = -(-values.numel() // 8)
    numbers = torch.empty(size, dtype=torch.int64, device=values.device)
    # Over all 64 bits; without a lower bound, random_() leaves the sign bit 0.
    drawn = numbers.random_(-(2**63), None).view(torch.uint8)[: values.numel()]
    # The same memory layout as the values', so that multiplication is sequential.
    dense = torch.empty_like(values)
    drawn = drawn.as_strided(dense.shape, dense.stride())
    mask = (drawn >= int(share * 256)).to(values.dtype)
    return values * mask.mul_(1 / (1 - share))


def layer(torch: Any, share: float) -> Any:
    """Return a module like `torch.nn.Dropout`; ValueError if ``share`` is no multiple of 1/256."""
    if not 0 <= share < 1 or share * 256 != int(share * 256):
        raise ValueError(f"{share} is not a whole number of 256ths below 1")

    class ByteDropout(torch.nn.Module):  # type: ignore[misc]
        def forward(self, values: Any) -> Any:
            return drop(torch, values, share) if self.training and share else values

    return ByteDropout()
