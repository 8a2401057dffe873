"""GPUs of each vendor: what is there, and what keeps it from working."""
