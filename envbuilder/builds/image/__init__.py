"""The builder `layers`: assemble an OCI image from a base image and reproducible layers."""
