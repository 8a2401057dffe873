"""Profiles and their locks: what a kind of hardware needs, its files, and whether it fits a host.

Pure. May import `host` and the subpackages below it.
"""
