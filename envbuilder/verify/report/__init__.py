"""Verification reports: schema, external checks, history, comparison, terminal tables."""
