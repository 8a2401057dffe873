"""Container engines: Docker through its SDK, podman through its client."""
