"""Verification reports: schema, checks from outside, history, and comparison."""
