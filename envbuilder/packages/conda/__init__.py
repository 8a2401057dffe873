"""Environments from conda packages, without conda: solved, locked, fetched and installed here."""
