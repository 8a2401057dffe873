"""Find the payload's report in the log of a pod, where stdout and stderr are mixed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST = 8 << 20
"""Bytes to ask for. Kubelets keep 10 MiB of a log; a verification writes 0.1 to 0.3 MB."""
_LAST_LINES, _LONGEST_LINE = 12, 500
_EVENT = '{"event":'


class Log(Struct, frozen=True, kw_only=True):
    """What a pod printed."""

    report: dict[str, Any] | None
    run_id: str
    """Whose report it is; empty without one."""
    last: str
    """The last lines that are no events, or the payload's own error."""


def read(text: str) -> Log:
    """Return what is in a log; the last report counts."""
    lines = text.splitlines()
    report, run_id, errors = None, "", []
    for event in _events(lines):
        kind, stated, message = event.get("event"), event.get("report"), event.get("message")
        if kind == "report" and isinstance(stated, dict):
            report, run_id = stated, str(event.get("run_id"))
        elif kind == "error" and isinstance(message, str):
            errors.append(message)
    plain = [line for line in lines if line.strip() and not line.startswith(_EVENT)]
    last = errors[-1:] or plain[-_LAST_LINES:]
    return Log(
        report=report, run_id=run_id, last="\n".join(printable(li, _LONGEST_LINE) for li in last)
    )


def _events(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Yield the events that may matter: progress and phases are most of the lines."""
    for line in lines:
        start = line[: len(_EVENT) + 12]
        if not line.startswith(_EVENT) or not ('"report"' in start or '"error"' in start):
            continue
        try:
            event = decoding.strict_json(line.encode())
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
