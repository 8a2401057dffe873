"""Take credentials out of URLs: out of single ones, and out of text that contains them.

Recognized are user names and passwords, queries, conda's tokens (`/t/TOKEN`) and `Authorization`
headers. A secret elsewhere in a path looks like any other path and stays.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

from envbuilder.core.text import escaped_lines

HIDDEN = "…"
"""What is shown in place of a credential."""

_URL = re.compile(r"://([^\s'\"<>`]+)")
_ENCODED_USER = re.compile(r"(%3A%2F%2F)[^\s'\"<>`&]{1,512}?%40", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:\[[^\]]*\]|[^:@]*)(?::[0-9]*)?[),.;:]*")
"""A host and a port without a user. Anything else before the first slash may be half a password."""
_WITHOUT_SCHEME = re.compile(
    r"(?:(?<=[\s'\"<>`=(])|^)[^\s'\"<>`=(/@:]+:(?!//)[^\s'\"<>`=(@]+@(?!sha(?:256|384|512):)",
    re.MULTILINE,
)
_HEADER = re.compile(
    r"(\bauthorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?[a-z]{1,20} )[^\s'\",]+", re.IGNORECASE
)
_PORT = re.compile(r"(integer value as )'[^'\s]*'")
"""What Python says about a port that is no number: half a password, if that has a slash."""
_TOKEN = re.compile(r"/t/[^/]+(?=/|\Z)")


def public(url: str) -> str:
    """Return a URL without user, password, query, fragment and conda's token.

    Raises `ValueError` if it cannot be parsed.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, _TOKEN.sub("", parts.path), "", ""))


def is_public(url: str) -> bool:
    """Return whether a URL holds nothing that `public` removes."""
    return public(url) == url


def redacted(text: str) -> str:
    """Return text with an ellipsis for each credential in it."""
    if not any(sign in text for sign in ("@", "://", "%40", "uthorization", "integer value as")):
        return text  # nearly every line
    text = _URL.sub(_redacted_url, text)
    text = _ENCODED_USER.sub(rf"\1{HIDDEN}%40", text)
    text = _WITHOUT_SCHEME.sub(f"{HIDDEN}@", text)
    text = _PORT.sub(rf"\1'{HIDDEN}'", text)
    return _HEADER.sub(rf"\1{HIDDEN}", text)


def log_text(text: str) -> str:
    """Return the lines of another program's output as they are kept or shown.

    Without credentials, and without control characters, so that a log can be shown on a terminal.
    """
    return escaped_lines(redacted(text))


def _redacted_url(match: re.Match[str]) -> str:
    rest = match[1]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # A password with an unescaped slash continues after it.
    scope = rest if not _AUTHORITY.fullmatch(authority.rpartition("@")[2]) else authority
    user, at, _ = scope.rpartition("@")
    rest = f"{HIDDEN}@{rest[len(user) + 1 :]}" if at and user != HIDDEN else rest
    rest, question, _ = rest.partition("?")
    return f"://{_TOKEN.sub(f'/t/{HIDDEN}', rest)}{question and f'?{HIDDEN}'}"
