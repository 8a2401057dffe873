"""What a kind of hardware needs, which files that means, and whether it fits a host. Pure.

May use `host` and the rooms below it.
"""
