"""Debian packages: archives, suites, dependency closures, and the packages of a base image."""
