"""Locks on native environments: an environment in use is neither removed nor replaced.

The lock is on the environment's marker. Commands share it; a removal needs it exclusively. The lock
belongs to the open file: a program that replaces this process keeps it, and child processes inherit
it. It ends with the last of these processes, however that process ends, on any machine.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from envbuilder.builds.backends.integrity import MARKER
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOWEST = 64
"""Lowest file descriptor for a lock. A command may use lower ones: shells redirect some by
number."""


class Hold:
    """A command's lock on an environment; it ends with this object."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def pass_on(self) -> None:
        """Keep the lock until this process ends, even if another program replaces it."""
        fcntl.fcntl(self._descriptor, fcntl.F_DUPFD, _LOWEST)


def hold(prefix: Path) -> Hold | None:
    """Lock an environment against removal, after waiting for a removal in progress.

    Return None if the environment does not exist, or no longer exists after the wait. On file
    systems without locks, there is no protection.
    """
    try:
        descriptor = os.open(prefix / MARKER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    held = Hold(descriptor)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), (prefix / MARKER).stat()):
            return held
    return None


@contextmanager
def replacing(prefix: Path) -> Iterator[None]:
    """Keep commands from starting in an environment; raise `BuildError` if one is running."""
    with ExitStack() as stack:
        with suppress(OSError):
            # For writing: NFS gives no exclusive lock otherwise.
            descriptor = os.open(prefix / MARKER, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BuildError(
                    f"{prefix}: not replaced, because a running command uses it",
                    "Wait until that command ends, or stop it. Then run the same command again.",
                ) from None
        yield
