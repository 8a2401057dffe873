"""Bundles: everything that some profiles need in one file, for machines without a network."""
