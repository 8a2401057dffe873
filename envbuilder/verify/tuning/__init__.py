"""Measure which settings make training faster on this machine."""
