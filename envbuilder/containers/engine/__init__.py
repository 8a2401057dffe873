"""Container engines: Docker through its SDK and its client, podman only through its client."""
