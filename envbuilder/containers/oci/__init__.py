"""OCI images as files: descriptors, layers, layouts, archives; needs no engine and no daemon."""
