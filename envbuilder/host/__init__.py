"""What a machine is, as data: this one, a recorded tree, or one that another machine described.

May use `containers`, `payload` and `core`.
"""
