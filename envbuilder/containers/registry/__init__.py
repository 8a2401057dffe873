"""A client for OCI registries, with pulls by digest, pushes, referrers and credentials."""
