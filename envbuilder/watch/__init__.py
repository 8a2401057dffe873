"""Watch a training that is not ours: what did its work, judged from outside while it runs.

`inside/` is what runs in the command's own interpreters; it observes and judges nothing. May import
`verify` and the rooms below it.
"""
