"""The user's own project: the requirements in its files, on top of the hardware's profiles."""
