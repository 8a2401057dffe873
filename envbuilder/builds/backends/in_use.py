"""Locks on native environments, so that an environment in use is neither removed nor replaced.

The locked file is the environment's marker. Commands share the lock, whereas removing the
environment requires an exclusive lock. The lock belongs to the open file. Therefore, a program that
replaces this process keeps the lock, and child processes inherit it. The lock is released when the
last of these processes ends, regardless of how and on which machine.
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
"""Lowest file descriptor to use for a lock. Lower descriptors are left to the command, since shells
redirect some of them by number."""


class Hold:
    """A command's lock on an environment. The lock is released when this object is deleted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def pass_on(self) -> None:
        """Keep the lock until this process ends, even if `exec` replaces the running program."""
        fcntl.fcntl(self._descriptor, fcntl.F_DUPFD, _LOWEST)


def hold(prefix: Path) -> Hold | None:
    """Wait for any removal in progress, then lock an environment against removal.

    Return None if the environment does not exist, or no longer exists after the wait. On file
    systems that do not support locks, the environment is not protected.
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
    """Keep commands from starting in an environment while it is replaced.

    Raise `BuildError` if a command is running in the environment.
    """
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
