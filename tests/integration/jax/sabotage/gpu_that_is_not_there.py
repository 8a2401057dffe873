"""A plugin for CUDA that is installed and brings no device."""

import importlib.metadata

real = importlib.metadata.version


def version(name):
    return "0.12.0.1" if name == "jax-cuda13-plugin" else real(name)


importlib.metadata.version = version
