"""Backends, each of which plans an `Environment` from a profile and a lock, without building it."""
