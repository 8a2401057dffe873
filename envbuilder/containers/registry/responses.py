"""Read the responses of a registry within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.http import read
from envbuilder.core.http_limits import TooLongError
from envbuilder.core.http_reasons import reason

if TYPE_CHECKING:
    import requests

ATTEMPTS = 4
"""Attempts at a request that fails only temporarily."""


class BrokenOffError(Exception):
    """A missing or incomplete response to a request; `str` says why in a few words."""


def limited(response: requests.Response, limit: int) -> bytes | None:
    """Return a whole body of at most `limit` bytes; None if it is longer.

    Raise `BrokenOffError` if it was cut short.
    """
    import requests

    try:
        return read(response, limit)
    except TooLongError:
        return None
    except requests.RequestException as error:
        raise BrokenOffError(reason(error)) from None
