"""Verification reports: their schema, checks from outside, history and comparison."""
