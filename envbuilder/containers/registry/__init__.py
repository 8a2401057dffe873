"""A client of OCI registries: pull by digest, push, referrers, credentials."""
