"""An order of images that leaves half of them out, and takes the others twice."""

import numpy

real = numpy.random.default_rng


class Generator:
    def __init__(self, seed):
        self._generator = real(seed)

    def __getattr__(self, name):
        return getattr(self._generator, name)

    def permutation(self, count):
        return self._generator.permutation(count) % (count // 2)


numpy.random.default_rng = Generator
