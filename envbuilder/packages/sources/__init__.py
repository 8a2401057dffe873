"""Packages without wheels: fetch their sources, and build them, sealed off, into wheels."""
