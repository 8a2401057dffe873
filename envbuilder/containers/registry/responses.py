"""Read the responses of a registry within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.http import reason

if TYPE_CHECKING:
    import requests

ATTEMPTS = 4
"""Attempts at a request that fails only temporarily."""
_PIECE = 1 << 16


class BrokenOffError(Exception):
    """A missing or incomplete response to a request; `str` says why in a few words."""


def limited(response: requests.Response, limit: int) -> bytes | None:
    """Return a whole body of at most `limit` bytes; None if it is longer.

    Raise `BrokenOffError` if it was cut short.
    """
    import requests

    data = b""
    try:
        with response:
            for chunk in response.iter_content(_PIECE):
                data += chunk
                if len(data) > limit:
                    return None
    except requests.RequestException as error:
        raise BrokenOffError(reason(error)) from None
    declared = response.headers.get("Content-Length", "")
    if declared.isdecimal() and len(data) != int(declared):
        raise BrokenOffError(f"broke off after {len(data)} of {declared} bytes")
    return data
