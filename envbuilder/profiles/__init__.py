"""Profiles and their locks: what each kind of hardware needs, which files, and which hosts fit.

The code has no side effects. It may import `host` and the subpackages below `host`.
"""
