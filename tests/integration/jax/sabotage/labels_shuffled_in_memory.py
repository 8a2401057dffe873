"""Labels in another order than the images, whatever the files say."""

import numpy

real = numpy.frombuffer
PIXELS = 28 * 28


def frombuffer(*arguments, **options):
    values = real(*arguments, **options)
    return values if len(values) % PIXELS == 0 else numpy.roll(values, 1)


numpy.frombuffer = frombuffer
