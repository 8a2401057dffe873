"""Kubernetes: manifests, and what clusters say."""
