"""Pack everything that profiles need into one file, for machines without a network.

This package may import `build` and the packages below it, but not `verify`.
"""
