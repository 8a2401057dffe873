"""The user's own project, whose files list requirements to add to the hardware's profiles."""
