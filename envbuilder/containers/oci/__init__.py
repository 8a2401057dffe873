"""OCI images as files: descriptors, layers, layouts and archives, without any engine."""
