"""Verification reports: their schema, consistency checks, and comparison with earlier reports."""
