"""A client for OCI registries that supports pulls by digest, pushes, referrers and credentials."""
