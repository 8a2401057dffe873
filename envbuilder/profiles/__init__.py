"""Profiles and their locks: what each kind of hardware needs, and which hosts a profile fits.

A profile's lock lists the exact files of its environments. The code has no side effects. It may
import `host` and the subpackages below `host`.
"""
