"""Watch a training run of the user's, and judge from outside on which device it did its work.

The modules in `inside/` run in the command's own interpreters. They report what they observe and do
not judge it. This package may import `verify` and the packages below it.
"""
