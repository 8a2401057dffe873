"""Shared foundation: errors, processes, files, HTTP, text and types.

Every other subpackage may import `core`, which imports nothing else from envbuilder.
"""
