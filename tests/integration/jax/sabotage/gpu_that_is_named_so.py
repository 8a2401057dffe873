"""A plugin for CUDA whose device is the CPU."""

import importlib.metadata

import jax

real = importlib.metadata.version
devices = jax.devices


def version(name):
    return "0.12.0.1" if name == "jax-cuda13-plugin" else real(name)


importlib.metadata.version = version
jax.devices = lambda name=None: devices("cpu")
