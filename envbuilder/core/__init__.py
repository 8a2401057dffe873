"""Shared foundation of envbuilder: errors, processes, files, HTTP, text and types.

Every other subpackage may import `core`, but `core` imports nothing else from envbuilder.
"""
