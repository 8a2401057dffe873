"""Store every verification's report as a file; list and read stored reports.

A report's name is `NUMBER-TIME-PROFILE-BACKEND-FINGERPRINT.json`. NUMBER is one more than that of
the newest report, so that sorting by name yields the order in which reports were stored,
independent of clocks: a clock set back or a report from the future changes nothing. TIME is the
start of the verification; it orders only reports with the same number or, from earlier versions,
without one (those are older).
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError, InvalidError, VerifyError
from envbuilder.verify.report import model
from envbuilder.verify.report.model import Report

KEPT = 200
"""Reports kept per profile: a few megabytes, and more than half a year of daily runs."""
LIMIT_BYTES = 16 << 20
"""Maximum size of a report (a real one has about 10 kB): the user may name any file."""
_LOCK_SECONDS = 30.0
_NAME = re.compile(
    r"(?:(?P<number>\d{6,})-)?(?P<time>\d{8}T\d{6}Z)-(?P<profile>_?[a-z0-9][a-z0-9-]*)"
    r"-(?P<backend>docker|venv|conda|external|apptainer)(?:-(?P<fingerprint>[0-9a-f]{12}))?\.json"
)


class StoredReport(Struct, frozen=True, kw_only=True):
    """A report and the file that it was read from."""

    path: Path
    report: Report


class Entry(Struct, frozen=True, kw_only=True):
    """A stored report, as described by its file name."""

    path: Path
    number: int
    time: str
    profile: str
    backend: str


def read(path: Path) -> StoredReport:
    """Read a report; raise `InvalidError` if it is unreadable or not a complete report."""
    try:
        content = files.read(path, LIMIT_BYTES, pipes=True)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        decoding.require_few_values(content)
        data = model.restored(msgspec.json.decode(content))
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path}: damaged: {error}", _WHAT_IT_IS) from error
    try:
        report = model.check(data)
    except VerifyError as error:
        raise InvalidError(f"{path}: damaged: {error.message}", _WHAT_IT_IS) from error
    return StoredReport(path=path, report=report)


_WHAT_IT_IS = "A report is what `envbuilder verify --output FILE` writes."


def entries(folder: Path, profile: str | None = None) -> tuple[Entry, ...]:
    """Return the stored reports (of one profile, if given), oldest first; skip other files."""
    result = []
    try:
        paths = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise InvalidError(f"{folder}: cannot be read: {error.strerror or error}") from error
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_file():
            continue
        if profile is None or match["profile"] == profile:
            entry = Entry(
                path=path,
                number=int(match["number"] or 0),
                time=match["time"],
                profile=match["profile"],
                backend=match["backend"],
            )
            result.append(entry)
    return tuple(sorted(result, key=lambda e: (e.number, e.time, e.path.name)))


def keep(report: dict[str, Any], folder: Path) -> Path:
    """Store a report atomically under the next number and return its path.

    The newest `KEPT` reports of each profile are retained, and of each kind the newest that passed
    on a quiet machine, regardless of age, so that there is always a report to compare with. Raises
    `BuildError` if the report cannot be stored.
    """
    from filelock import FileLock

    profile, backend = report["profile"], report["backend"]
    fingerprint = f"-{report['fingerprint'][:12]}" if report.get("fingerprint") else ""
    try:
        files.ensure_folder(folder)
        # Two verifications that end at the same time must get different numbers.
        with FileLock(folder / ".lock", timeout=_LOCK_SECONDS):
            number = max((e.number for e in entries(folder)), default=0) + 1
            name = f"{number:06}-{report['time']}-{profile}-{backend}{fingerprint}.json"
            model.write(report, folder / name, files.PRIVATE)
            _prune(folder, profile)
    except (OSError, NotImplementedError) as error:  # a lock time-out is an OSError, too
        why = getattr(error, "strerror", None) or error
        raise BuildError(f"{folder}: the report cannot be stored: {why}", _ELSEWHERE) from error
    except VerifyError as error:
        raise BuildError(error.message, _ELSEWHERE) from error
    return folder / name


_ELSEWHERE = (
    "The verification itself finished. Free some disk space, or set ENVBUILDER_DATA_DIR to a"
    " writable folder."
)


def kind(report: Report) -> tuple[str, ...]:
    """Return what a report must have in common with a predecessor.

    Profile, backend, device name and whether it was quick; for an external interpreter
    (`verify --python`) also its path.
    """
    external = report.backend == "external"
    return (
        report.profile or "",
        report.backend or "",
        report.device.name or "",
        "quick" if report.partial else "full",
        (report.artifact.ref or "") if external else "",
    )


def last(
    folder: Path, *, profile: str, backend: str, quick: bool, like: Report | None = None
) -> StoredReport | None:
    """Return the newest stored report that can be compared with: `_yardstick`, of this profile.

    Backend and quick flag must match, with `like` its whole kind. Damaged files are skipped.
    """
    for entry in reversed(entries(folder, profile)):
        if entry.backend != backend:
            continue
        stored = _readable(entry.path)
        if stored is None or not _yardstick(stored.report) or stored.report.partial != quick:
            continue
        if like is None or kind(stored.report) == kind(like):
            return stored
    return None


def _prune(folder: Path, profile: str) -> None:
    stored = entries(folder, profile)
    surplus = {entry.path for entry in stored[:-KEPT]}
    if not surplus:
        return
    kinds = set()
    for entry in reversed(stored):
        past = _readable(entry.path)
        if past and _yardstick(past.report) and kind(past.report) not in kinds:
            kinds.add(kind(past.report))
            surplus.discard(entry.path)
    for path in surplus:
        # A leftover file does no harm; the new report is already stored.
        with contextlib.suppress(OSError):
            path.unlink()


def _yardstick(report: Report) -> bool:
    """Return whether later reports may be compared with it: it passed on a quiet machine."""
    return report.status == "passed" and report.speed_counts


def _readable(path: Path) -> StoredReport | None:
    try:
        return read(path)
    except InvalidError:
        return None
