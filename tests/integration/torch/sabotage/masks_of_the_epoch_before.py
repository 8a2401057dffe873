"""Dropout whose masks are those of the epoch before: 47 steps, of two masks each."""

import itertools

import torch

real = torch.Tensor.random_
number = itertools.count()


def random_(self, *more, **options):
    seed = 7 + next(number) % 94
    generator = torch.Generator(self.device).manual_seed(seed)
    return real(self, *more, generator=generator, **options)


torch.Tensor.random_ = random_
