"""The user's own project: what its files require, on top of the profiles of the hardware."""
