"""OCI images as files: descriptors, layers, layouts, archives; no engine and no daemon."""
