"""Verify every node of a cluster, and show the results in one table.

The verification of each node is a job that a scheduler runs. The code may import `verify` and the
rooms below it.
"""
