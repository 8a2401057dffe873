"""Signed envelopes, of any payload and type."""

from __future__ import annotations

import base64

from envbuilder.core.signatures import Envelope, PrivateKey, also_signed


def signed_envelope(content: bytes, payload_type: str, key: PrivateKey) -> Envelope:
    """Return an envelope of the payload with one signature."""
    payload = base64.b64encode(content).decode()
    return also_signed(Envelope(payload_type=payload_type, payload=payload, signatures=()), key)
