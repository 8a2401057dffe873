"""Backends: each turns a profile and a lock into an `Environment`, planned but not yet built."""
