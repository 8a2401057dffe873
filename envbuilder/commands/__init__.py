"""One module per command; each holds a Click command named `command`."""
