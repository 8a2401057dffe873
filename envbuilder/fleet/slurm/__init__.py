"""Slurm: its client, and the jobs that it is given."""
