"""Kubernetes: manifests for the user to create, and the results in the logs that the user saves.

envbuilder itself never talks to a cluster.
"""
