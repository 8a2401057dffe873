"""A loss that is NaN from the 20th step on, while the gradients stay right."""

import sys

job = sys.modules["payload.frameworks.tensorflow_job"].Job
real = job.step


def step(self, first, count):
    return real(self, first, count) * (float("nan") if first >= 20 * 64 else 1)


job.step = step
