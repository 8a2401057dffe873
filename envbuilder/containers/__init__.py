"""Container images, independent of profiles: OCI formats, registries and engines.

This package may only import `core`.
"""
