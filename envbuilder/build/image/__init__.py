"""The builder `layers`: an OCI image put together from a base and reproducible layers."""
