"""Signatures by key: DSSE envelopes over in-toto statements, and the files that hold them.

A room of its own, above `core` alone: locks and bundles are signed in the same way, so the rooms
that read them share it, and it knows none of their formats. `keys` is the only module that uses
cryptography, an optional dependency, and imports it when a key is read.
"""
