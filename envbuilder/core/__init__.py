"""What every room may use and what knows none of them: errors, processes, files, HTTP, text, types.

Imports nothing of envbuilder but its own modules.
"""
