"""Verification on every node of a cluster: who is promised what, jobs, results, one table.

May use `verify` and the rooms below it; a scheduler runs the jobs.
"""
