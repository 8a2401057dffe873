"""One module per command, each with a Click command named `command`."""
