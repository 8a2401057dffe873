"""Thread pools that end soon after a failure or an interruption."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_SECONDS = 0.5
"""How long running jobs may go on after a failure."""


@contextlib.contextmanager
def pool(
    workers: int | None = None, stop: Callable[[], None] = lambda: None
) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool; on any error, drop what has not started and `stop` what has.

    A job that does not stop, such as one that resolves a name, is left behind.
    """
    executor = ThreadPoolExecutor(workers)
    try:
        yield executor
        executor.shutdown()
    except BaseException:
        stop()
        executor.shutdown(wait=False, cancel_futures=True)
        waiting = threading.Thread(target=executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(PATIENCE_SECONDS)
        raise
