"""Verify every node of a cluster, and show the results in one table.

A scheduler runs the verification of each node as a job. This package may import `verify` and the
packages below it.
"""
