"""Container images, independent of profiles: OCI formats, registries, engines.

May use `core`.
"""
