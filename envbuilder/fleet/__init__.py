"""Verify every node of a cluster and show the results in one table.

A scheduler runs the jobs. The code may import `verify` and the rooms below it.
"""
