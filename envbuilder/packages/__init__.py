"""Locate, resolve, fetch, store and install the packages that make up an environment.

May import `profiles` and the rooms below it.
"""
