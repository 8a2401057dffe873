"""Locate, resolve, fetch, store and install the packages that environments are made of.

May use `profiles` and the rooms below it.
"""
