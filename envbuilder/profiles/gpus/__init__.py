"""Whether the GPUs of one vendor can do what a profile needs; one module per vendor."""
