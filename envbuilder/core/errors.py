"""Error classes and exit codes of the command line.

Every message states what happened and where; `hint` states what to do next. `cli.main` is the only
place that catches these errors and turns them into text and an exit code.
"""

from __future__ import annotations

from envbuilder.core.text import redacted

BUILD_FAILED = 1
INVALID = 2
NOTHING_FITS = 3
TOOL_MISSING = 4
VERIFY_FAILED = 5
RUN_FAILED = 125  # envbuilder's own failure: `run` and `shell` pass the command's exit code through
INTERRUPTED = 130


class EnvbuilderError(Exception):
    """Base class of all expected failures: `message` (what, where) and `hint` (what next).

    Neither holds a URL's credentials, whoever wrote the text that they repeat.
    """

    exit_code = BUILD_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = redacted(message)
        self.hint = redacted(hint)
        super().__init__(self.message)


class BuildError(EnvbuilderError):
    """A fetch or build step failed: wrong hash, full disk, failing command (exit 1)."""

    exit_code = BUILD_FAILED


class WrongHashError(BuildError):
    """A file does not match its hash in the lock; none of it was kept (exit 1)."""

    def __init__(self, message: str, hint: str = "", *, actual: str = "") -> None:
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
