"""Labels of the test images that moved by one in memory: a right network looks wrong."""

import torch

real = torch.frombuffer
seen = []


def frombuffer(*arguments, **options):
    seen.append(real(*arguments, **options))
    return seen[-1].roll(1) if len(seen) == 3 else seen[-1]


torch.frombuffer = frombuffer
