"""The user's own project: the requirements in its files, added to the hardware's profiles."""
