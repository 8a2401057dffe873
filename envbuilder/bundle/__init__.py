"""Everything that profiles need, in one file, for machines without a network.

May use `build` and the rooms below it; does not know `verify`.
"""
