"""Verification of clusters."""
