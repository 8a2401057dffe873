"""Conda environments without conda: solve, lock and install their packages."""
