"""Watch a user's training run, and judge from outside which device did the work.

The modules in `inside/` run in the command's own interpreters. They report what they observe, but
do not judge it. This package may import `verify` and the packages below it.
"""
