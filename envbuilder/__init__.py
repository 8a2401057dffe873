"""envbuilder: build and prove deep-learning environments for the hardware you have."""

__version__ = "0.1.0"
