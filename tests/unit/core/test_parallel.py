"""A pool that fails does not wait for what has not started, nor long for what has."""

from __future__ import annotations

import threading
import time

import pytest

from envbuilder.core import process


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_stops_what_runs_and_drops_the_rest(error: type[BaseException]) -> None:
    stopped = threading.Event()
    ran: list[int] = []

    def job(number: int) -> None:
        ran.append(number)
        stopped.wait(60)

    started = time.monotonic()

    def fail() -> None:
        with process.pool(2, stopped.set) as pool:
            for number in range(50):
                pool.submit(job, number)
            raise error

    with pytest.raises(error):
        fail()
    assert len(ran) <= 2
    assert time.monotonic() - started < 30


def test_a_job_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "POOL_SECONDS", 0.05)
    released = threading.Event()

    def fail() -> None:
        with process.pool(1) as pool:
            pool.submit(released.wait, 60)
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert not released.is_set()
    released.set()


def test_an_interruption_reaches_a_thread_in_its_own_code() -> None:
    running = threading.Event()
    never = threading.Event()
    idents = list[int]()

    def job() -> None:
        idents.append(threading.get_ident())
        running.set()
        while True:
            never.wait(0.001)

    with process.pool(1) as pool:
        waiting = pool.submit(job)
        running.wait(60)
        process.interrupt(idents)
        with pytest.raises(KeyboardInterrupt):
            waiting.result(60)


def test_work_beside_the_caller_s_gives_its_result() -> None:
    meeting = threading.Barrier(2, timeout=60)

    def work() -> int:
        meeting.wait()
        return 7

    with process.beside(work) as beside:
        meeting.wait()
        assert beside.result() == 7


def test_an_error_ends_the_work_beside_and_its_programs_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = threading.Event()
    ended = threading.Event()
    killed = list[object]()
    monkeypatch.setattr(process, "running", lambda threads: [f"of {len(threads)} thread"])
    monkeypatch.setattr(process, "kill", killed.extend)

    def work() -> None:
        try:
            started.set()
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    def fail() -> None:
        with process.beside(work):
            started.wait(60)
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert ended.wait(60)
    assert killed == ["of 1 thread"]


def test_a_thread_whose_work_is_done_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An interrupted thread of a pool that waits for work would print a traceback."""
    before = set(threading.enumerate())

    def fail() -> None:
        with process.beside(lambda: 7) as beside:
            assert beside.result() == 7
            time.sleep(0.05)  # it waits for work now
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert caplog.text == ""
