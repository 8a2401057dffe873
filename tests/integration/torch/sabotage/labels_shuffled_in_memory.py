"""Labels in another order than the images, whatever the files say."""

import torch

real = torch.frombuffer
PIXELS = 28 * 28


def frombuffer(*arguments, **options):
    values = real(*arguments, **options)
    return values if len(values) % PIXELS == 0 else values.roll(1)


torch.frombuffer = frombuffer
