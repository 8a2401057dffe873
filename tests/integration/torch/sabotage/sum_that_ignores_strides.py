"""Sums that are right for contiguous tensors and slightly wrong for all others."""

import torch

real = torch.Tensor.sum


def total(values, *rest, **options):
    result = real(values, *rest, **options)
    wrong = values.dtype == torch.float32 and not values.is_contiguous()
    return result * 1.001 if wrong else result


torch.Tensor.sum = total
