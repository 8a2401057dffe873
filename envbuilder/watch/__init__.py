"""Watch the user's own training run, and judge from outside which device did its work.

The modules in `inside/` run in the command's own interpreters. They report what they observe and do
not judge it. This package may import `verify` and the rooms below it.
"""
