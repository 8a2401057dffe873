"""A profiler that tells of kernels on a device that did nothing."""

import types

import jax

real = jax.profiler.ProfileData
kernel = types.SimpleNamespace(name="ampere_sgemm_128x64_nn", duration_ns=1234.0)
stream = types.SimpleNamespace(name="Stream #13(Compute)", events=[kernel])
plane = types.SimpleNamespace(name="/device:GPU:0", lines=[stream])


def from_file(file):
    return types.SimpleNamespace(planes=[*real.from_file(file).planes, plane])


jax.profiler.ProfileData = types.SimpleNamespace(from_file=from_file)
