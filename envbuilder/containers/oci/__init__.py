"""OCI images as files, without any engine: descriptors, layers, layouts and archives."""
