"""Error classes and exit codes of the command line.

Every message states what happened and where; its hints state what to do next. `cli.main` is the
only place that catches these errors and turns them into text and an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from envbuilder.core.text import escaped_lines, redacted

BUILD_FAILED = 1
INVALID = 2
NOTHING_FITS = 3
TOOL_MISSING = 4
VERIFY_FAILED = 5
RUN_FAILED = 125  # envbuilder's own failure: `run` and `shell` pass the command's exit code through
NOT_EXECUTABLE = 126
NOT_FOUND = 127
INTERRUPTED = 130


class Hint(NamedTuple):
    """What to do next: a sentence, and the command that does it.

    A sentence that announces a command ends without a full stop: `str` puts a colon there.
    """

    sentence: str
    command: tuple[str, ...] = ()
    """The words after `envbuilder`; one in capitals, such as NAME, is for the user to fill in."""

    def __str__(self) -> str:
        """Return the hint in one line, for JSON and for reasons."""
        return ": ".join(filter(None, (self.sentence, self.command_line())))

    def command_line(self) -> str:
        """Return the command quoted for a shell, on one line; empty if there is none."""
        import shlex

        if not self.command:
            return ""
        return escaped_lines(shlex.join(("envbuilder", *self.command))).replace("\n", "\\n")


def as_hints(stated: str | Hint | Iterable[Hint]) -> tuple[Hint, ...]:
    """Return the hints that were stated, without credentials."""
    if isinstance(stated, str):
        stated = (Hint(stated),) if stated else ()
    elif isinstance(stated, Hint):
        stated = (stated,)
    return tuple(Hint(redacted(h.sentence), tuple(map(redacted, h.command))) for h in stated)


def make_room(setting: str) -> tuple[Hint, ...]:
    """Return the hints for a full disk; `setting` names the variables that choose another one."""
    return (
        Hint(f"Set {setting} to a larger disk."),
        Hint("Or remove what envbuilder made and nothing needs", ("clean",)),
    )


class EnvbuilderError(Exception):
    """Base class of all expected failures: `message` (what, where) and `hints` (what next).

    Neither holds a URL's credentials, whoever wrote the text that they repeat.
    """

    exit_code = BUILD_FAILED

    def __init__(self, message: str, hint: str | Hint | Iterable[Hint] = "") -> None:
        self.message = redacted(message)
        self.hints = as_hints(hint)
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """The hints as text, a line each."""
        return "\n".join(map(str, self.hints))


_Error = TypeVar("_Error", bound=EnvbuilderError)


def with_context(
    error: _Error, context: str = "", hint: str | Hint | Iterable[Hint] = ""
) -> _Error:
    """Return the error with `context: ` before its message, and further hints after its own.

    It is the same object, so it keeps its class, cause and traceback.
    """
    if context:
        error.message = redacted(f"{context}: {error.message}")
        error.args = (error.message,)
    error.hints += as_hints(hint)
    return error


class BuildError(EnvbuilderError):
    """A fetch or build step failed: wrong hash, full disk, failing command (exit 1)."""

    exit_code = BUILD_FAILED


class WrongHashError(BuildError):
    """A file does not match its hash in the lock; none of it was kept (exit 1)."""

    def __init__(
        self, message: str, hint: str | Hint | Iterable[Hint] = "", *, actual: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.actual = actual
        """The sha256 of the file, if it was computed."""


class ChangedFileError(WrongHashError):
    """A source has another file under the name of a locked one; none of it was kept (exit 1)."""


class InvalidError(EnvbuilderError):
    """Usage, profile, configuration or lock is invalid, stale or unlocked (exit 2)."""

    exit_code = INVALID


class UnlockedError(InvalidError):
    """A project's lock is missing or stale: `envbuilder lock` makes it (exit 2)."""


class HostError(EnvbuilderError):
    """Nothing on this host can run the profile (exit 3)."""

    exit_code = NOTHING_FITS


class ToolError(EnvbuilderError):
    """An engine, tool or interpreter is missing or too old (exit 4)."""

    exit_code = TOOL_MISSING


class CommandError(ToolError):
    """The user's command is missing or cannot be executed; `run` ends with a shell's code for that.

    Those are 127 and 126.
    """

    def __init__(self, message: str, hint: str = "", *, run_code: int) -> None:
        super().__init__(message, hint)
        self.run_code = run_code


class VerifyError(EnvbuilderError):
    """The payload failed, was killed or ran out of time (exit 5)."""

    exit_code = VERIFY_FAILED


class SignatureError(EnvbuilderError):
    """A required signature is missing or not accepted (exit 5)."""

    exit_code = VERIFY_FAILED


class LimitError(OSError):
    """A server sends too much, too slowly or for too long; `str` says which, without its name."""


class TooLongError(LimitError):
    """A body is longer than it may be."""
