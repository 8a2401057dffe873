"""Thread pools that end soon after a failure or an interruption."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

from envbuilder.core import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

_T = TypeVar("_T")

PATIENCE_SECONDS = 0.5
"""How long running jobs may go on after a failure."""


@contextlib.contextmanager
def pool(
    workers: int | None = None,
    stop: Callable[[], None] = lambda: None,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool; on any error, drop what has not started and `stop` what has.

    What has started may clean up for `patience` seconds. A job that does not stop, such as one that
    resolves a name, is left behind.
    """
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(workers)
    try:
        yield executor
        executor.shutdown()
    except BaseException:
        stop()
        executor.shutdown(wait=False, cancel_futures=True)
        waiting = threading.Thread(target=executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(patience)
        raise


@contextlib.contextmanager
def beside(work: Callable[[], _T]) -> Iterator[Future[_T]]:
    """Do some work in a thread beside the caller's, which may wait for its result.

    On any error of the caller's, the programs that the work runs are killed, and it is interrupted.
    """
    threads = set[int]()

    def begin() -> _T:
        with working(threads):
            return work()

    def stop() -> None:
        interrupt(tuple(threads))
        process.kill(process.running(threads))

    with pool(1, stop) as executor:
        yield executor.submit(begin)


@contextlib.contextmanager
def working(threads: set[int]) -> Iterator[None]:
    """Keep this thread's ident in `threads` while it works, for `interrupt`.

    One that merely waits for work, in a pool, must not be interrupted: it would print a traceback.
    """
    threads.add(threading.get_ident())
    try:
        yield
    finally:
        threads.discard(threading.get_ident())


def interrupt(threads: Iterable[int]) -> None:
    """Raise `KeyboardInterrupt` in threads, given by their idents, as Ctrl-C does in the main one.

    A thread that waits for something outside of Python gets it when that wait ends.
    """
    import ctypes

    for ident in threads:
        error = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), error)
