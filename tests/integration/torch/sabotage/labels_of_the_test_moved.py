"""Labels of the test images that moved by one in memory: a right network looks wrong."""

import torch

real = torch.frombuffer
count = 0


def frombuffer(*arguments, **options):
    global count
    count += 1
    values = real(*arguments, **options)
    return values.roll(1) if count == 3 else values


torch.frombuffer = frombuffer
