"""The files that environments are made of, and where they come from.

May use `profiles` and the rooms below it.
"""
