"""Container engines: Docker through its SDK and its client, podman through its client."""
