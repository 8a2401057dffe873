"""Debian packages: archives, suites, closures, what a base image has installed."""
