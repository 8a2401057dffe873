"""Container engines on this machine, and the devices that they can give."""
