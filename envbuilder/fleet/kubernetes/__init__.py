"""Verification on Kubernetes: manifests for the user to apply, and the results in their logs.

envbuilder talks to a cluster through `kubectl` alone, and only reads from it.
"""
