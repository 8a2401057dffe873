"""Verification reports: their schema, checks from outside, and comparison with earlier reports."""
