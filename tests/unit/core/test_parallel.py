"""A pool that fails does not wait for what has not started, nor long for what has."""

from __future__ import annotations

import threading
import time

import pytest

from envbuilder.core import parallel


def test_results_come_from_threads() -> None:
    with parallel.pool(2) as pool:
        assert list(pool.map(abs, range(-20, 0))) == list(range(20, 0, -1))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_stops_what_runs_and_drops_the_rest(error: type[BaseException]) -> None:
    stopped = threading.Event()
    ran: list[int] = []

    def job(number: int) -> None:
        ran.append(number)
        stopped.wait(60)

    started = time.monotonic()

    def fail() -> None:
        with parallel.pool(2, stopped.set) as pool:
            for number in range(50):
                pool.submit(job, number)
            raise error

    with pytest.raises(error):
        fail()
    assert len(ran) <= 2
    assert time.monotonic() - started < 30


def test_a_job_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()

    def fail() -> None:
        with parallel.pool(1) as pool:
            pool.submit(released.wait, 60)
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert not released.is_set()
    released.set()


def test_an_interruption_reaches_a_thread_in_its_own_code() -> None:
    running, never, idents = threading.Event(), threading.Event(), list[int]()

    def job() -> None:
        idents.append(threading.get_ident())
        running.set()
        while True:
            never.wait(0.001)

    with parallel.pool(1) as pool:
        waiting = pool.submit(job)
        running.wait(60)
        parallel.interrupt(idents)
        with pytest.raises(KeyboardInterrupt):
            waiting.result(60)
