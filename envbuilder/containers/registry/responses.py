"""Reading what a registry answers, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.http import reason

if TYPE_CHECKING:
    import requests

ATTEMPTS = 4
"""How often anything is tried that a registry could not do for the moment."""
_PIECE = 1 << 16


class BrokenOffError(Exception):
    """A request got no answer, or not all of it; `str` says why in a few words."""


def limited(response: requests.Response, limit: int) -> bytes | None:
    """A whole body of at most `limit` bytes; None where it is longer.

    Raises `BrokenOffError` where it was cut short.
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
