"""Parse `WWW-Authenticate` challenges and the responses of token servers; pure."""

from __future__ import annotations

import re
from urllib.request import parse_http_list

import msgspec
from msgspec import Struct

from envbuilder.core import decoding

_PIECE = re.compile(
    r"(?:(?P<scheme>[A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:\s+|\Z))?"
    r"(?:(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*=\s*(?P<value>.*))?",
    re.DOTALL,
)
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")


class Challenge(Struct, frozen=True):
    """An authentication method that a registry offers: lower-case scheme, and parameters."""

    scheme: str
    parameters: dict[str, str]


class _Answer(Struct, frozen=True):
    token: str | None = None
    access_token: str | None = None


def parse(header: str) -> tuple[Challenge, ...]:
    """Return the challenges of a `WWW-Authenticate` header; malformed parts are skipped."""
    challenges: list[Challenge] = []
    for piece in parse_http_list(header):
        match = _PIECE.fullmatch(piece.strip())
        if match is None:
            continue
        if match["scheme"]:
            challenges.append(Challenge(match["scheme"].lower(), {}))
        if match["name"] and challenges:
            value = match["value"].strip()
            if len(value) >= 2 and value[0] == value[-1] == '"':
                value = value[1:-1]
            challenges[-1].parameters.setdefault(match["name"].lower(), value)
    return tuple(challenges)


def token(body: bytes) -> str:
    """Return the token in a token server's response; empty if there is none that fits a header."""
    try:
        answer = decoding.from_json(body, _Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    given = answer.token or answer.access_token or ""
    return given if _TOKEN.fullmatch(given) else ""
