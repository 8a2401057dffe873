"""Packages without wheels: download their sources, and build wheels from them in a sandbox."""
