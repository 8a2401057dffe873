"""Shared foundation: errors, processes, files, HTTP, text and types.

Every other subpackage may import it; it imports nothing from envbuilder but its own modules.
"""
