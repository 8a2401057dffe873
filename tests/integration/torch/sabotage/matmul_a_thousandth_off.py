"""Matrix products that are wrong in the third digit, on "the device": in all but float64."""

import torch

real = torch.Tensor.__matmul__


def matmul(left, right):
    result = real(left, right)
    return result if left.dtype == torch.float64 else result * 1.001


torch.Tensor.__matmul__ = matmul
