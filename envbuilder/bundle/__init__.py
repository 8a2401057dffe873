"""Pack everything that profiles need into one file, for machines without a network.

The code may import `build` and the rooms below it, but not `verify`.
"""
