"""Keep the reports of watched trainings, and compare a new one with an earlier one.

They are named and numbered as those of verifications are, in a folder of their own.
"""

from __future__ import annotations

from pathlib import Path

from envbuilder.core.errors import InvalidError, printable
from envbuilder.core.text import amount
from envbuilder.verify.report import history
from envbuilder.verify.report.history import MAX_SLOWDOWN
from envbuilder.watch import model
from envbuilder.watch.judge import device, dtype, framework, speed


def keep(watched: model.Watched, folder: Path) -> Path:
    """Store a report under the next number and return its path; raise `BuildError`.

    Of each profile the newest ones are retained, and the newest of each command that succeeded.
    """
    name = (watched.time, watched.profile, watched.backend, watched.fingerprint)
    path = history.stored(folder, name, lambda: model.encoded(watched))
    history.prune(folder, watched.profile, lambda path: _kind(_succeeded(path)))
    return path


def last(folder: Path, like: model.Watched) -> model.Watched | None:
    """Return the newest other report of the same kind whose command succeeded."""
    for entry in reversed(history.entries(folder, like.profile)):
        watched = _succeeded(entry.path)
        if watched != like and _kind(watched) == _kind(like):
            return watched
    return None


def _kind(watched: model.Watched | None) -> tuple[object, ...] | None:
    """Return what a report has in common with those it is compared with."""
    if watched is None:
        return None
    return watched.profile, watched.backend, watched.requested, watched.command


def _succeeded(path: Path) -> model.Watched | None:
    """Return a kept report; None if its command failed, or the file is damaged."""
    try:
        watched = model.read(path)
    except InvalidError:
        return None
    if watched.exit_code:
        return None
    return watched


def changes(watched: model.Watched, earlier: model.Watched) -> list[str]:
    """Return in sentences how a training differs from an earlier one.

    Its rate is about the same up to a factor of `MAX_SLOWDOWN`.
    """
    sentences = []
    now = speed(watched)
    then = speed(earlier)
    if now and then and now[1] == then[1]:
        word = "about as fast"
        if now[0] > MAX_SLOWDOWN * then[0]:
            word = "faster"
        elif now[0] * MAX_SLOWDOWN < then[0]:
            word = "slower"
        unit = f"{now[1]}/s"
        sentences.append(f"{word}: {amount(now[0])} {unit}, before {amount(then[0])} {unit}")
    for name, value in (("device", device), ("dtype", dtype), ("framework", framework)):
        if value(watched) != value(earlier):
            sentences.append(f"{name}: {value(watched)}, before {value(earlier)}")
    kinds = [finding.kind for finding in watched.findings]
    before = [finding.kind for finding in earlier.findings]
    sentences += [f"new: {printable(kind)}" for kind in kinds if kind not in before]
    sentences += [f"gone: {printable(kind)}" for kind in before if kind not in kinds]
    return sentences
