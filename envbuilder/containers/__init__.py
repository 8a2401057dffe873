"""Container images without profiles: formats, registries, engines.

May use `core`.
"""
