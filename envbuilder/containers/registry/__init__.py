"""A client of OCI registries: pulls by digest, pushes, referrers and credentials."""
