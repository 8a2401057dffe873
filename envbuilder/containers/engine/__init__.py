"""Container engines: Docker through its SDK and client, podman through its client."""
