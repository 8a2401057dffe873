"""A profiler that runs the work and has seen nothing."""

import types

import jax

jax.profiler.ProfileData = types.SimpleNamespace(
    from_file=lambda file: types.SimpleNamespace(planes=[])
)
