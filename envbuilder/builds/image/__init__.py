"""The `layers` builder, which assembles an OCI image from a base image and reproducible layers."""
