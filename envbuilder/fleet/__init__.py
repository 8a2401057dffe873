"""Verify every node of a cluster: promises, jobs, results, one table.

May use `verify` and the rooms below it; a scheduler runs the jobs.
"""
