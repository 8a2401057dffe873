"""What is in an artifact and where it came from: SBOM and provenance, kept next to it."""
