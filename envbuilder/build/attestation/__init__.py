"""Attestations of an artifact: SBOM and provenance, kept next to it."""
