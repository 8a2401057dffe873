"""Packages without wheels: fetch their sources, and build wheels from them in a sandbox."""
