"""Write and read times as reports and records state them: 20261123T091500Z, always UTC."""

from __future__ import annotations

from datetime import UTC, datetime

FORM = "%Y%m%dT%H%M%SZ"


def now() -> str:
    """Return the stamp of this moment."""
    return datetime.now(UTC).strftime(FORM)


def parse(stamp: str) -> datetime:
    """Return the time of a stamp; raise `ValueError` if it has another form."""
    return datetime.strptime(stamp, FORM).replace(tzinfo=UTC)


def readable(stamp: str) -> str:
    """Return a stamp as "23 November 2026, 09:15 UTC", and as it is if it has another form."""
    try:
        when = parse(stamp)
    except ValueError:
        return stamp
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
