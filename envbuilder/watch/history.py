"""Keep the reports of watched trainings, and compare a new one with an earlier one.

They are named and numbered as those of verifications are, in a folder of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.core import files
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.text import amount, printable
from envbuilder.verify.report import history
from envbuilder.verify.report.history import MAX_SLOWDOWN
from envbuilder.watch import model
from envbuilder.watch.judge import OF_MACHINE, device, dtype, framework, speed

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.watch.model import Watched


def write(watched: Watched, path: Path, mode: int = 0o666) -> None:
    """Write a report atomically to a path that the user names; raise `BuildError`."""
    content = msgspec.json.format(msgspec.json.encode(watched), indent=1) + b"\n"
    hint = "The command itself ended; choose another path with --output."
    files.save_output(path, content, BuildError, hint, "the report", mode)


def keep(watched: Watched, folder: Path) -> Path:
    """Store a report under the next number and return its path; raise `BuildError`.

    Of each profile the newest ones are retained, and the newest of each command that succeeded.
    """
    name = (watched.time, watched.profile, watched.backend, watched.fingerprint)
    path = history.stored(folder, name, lambda path: write(watched, path, files.PRIVATE))
    history.prune(folder, watched.profile, _kind_of_file)
    return path


def last(folder: Path, like: Watched) -> tuple[Path, Watched] | None:
    """Return the newest other report of the same kind whose command succeeded."""
    for entry in reversed(history.entries(folder, like.profile)):
        report = _readable(entry.path)
        if report and not report.exit_code and report != like and _kind(report) == _kind(like):
            return entry.path, report
    return None


def _kind(watched: Watched) -> tuple[object, ...]:
    """Return what a report has in common with those it is compared with."""
    return watched.profile, watched.backend, watched.requested, watched.command


def _kind_of_file(path: Path) -> tuple[object, ...] | None:
    report = _readable(path)
    return _kind(report) if report and not report.exit_code else None


def _readable(path: Path) -> Watched | None:
    try:
        return model.read(path)
    except InvalidError:
        return None


class Compared(Struct, frozen=True, kw_only=True):
    """How a training differs from an earlier one, in sentences; `is_worse`: slower or at fault."""

    sentences: tuple[str, ...]
    is_worse: bool


def against(watched: Watched, earlier: Watched) -> Compared:
    """Compare a training with an earlier one.

    It is worse if its rate fell by more than a factor of `MAX_SLOWDOWN` on the same kind of device,
    or if its script lost something that it did not lose before.
    """
    sentences = [
        f"{name}: {value(watched)}, before {value(earlier)}"
        for name, value in (("device", device), ("dtype", dtype), ("framework", framework))
        if value(watched) != value(earlier)
    ]
    now, then, is_slower = speed(watched), speed(earlier), False
    if now and then and now[1] == then[1]:
        ratio = now[0] / then[0]
        is_slower = ratio * MAX_SLOWDOWN < 1
        word = "slower" if is_slower else "faster" if ratio > MAX_SLOWDOWN else "about as fast"
        pair = f"{amount(now[0])} {now[1]}/s, before {amount(then[0])} {then[1]}/s"
        sentences.insert(0, f"{word}: {pair}")
    kinds, before_kinds = ([f.kind for f in w.findings] for w in (watched, earlier))
    new = [kind for kind in kinds if kind not in before_kinds]
    gone = [kind for kind in before_kinds if kind not in kinds]
    sentences += [f"new: {printable(', '.join(new))}"] if new else []
    sentences += [f"gone: {printable(', '.join(gone))}"] if gone else []
    is_same = device(watched) == device(earlier) and "load" not in {*kinds, *before_kinds}
    return Compared(
        sentences=tuple(sentences), is_worse=(is_slower and is_same) or bool({*new} - OF_MACHINE)
    )
