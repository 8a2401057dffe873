"""Imports like zentorch and brings neither operators nor a compile backend."""

__version__ = "2.13.0.2"
