"""Watch the user's own training, and judge from outside what did its work.

The modules in `inside/` run in the command's own interpreters; they report what they see and do not
judge it. This package may import `verify` and the rooms below it.
"""
