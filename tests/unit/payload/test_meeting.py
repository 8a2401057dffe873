"""The folder in which nodes meet: what is awaited, for how long, and what is never believed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.payload.parallel import meeting
from envbuilder.payload.parallel.meeting import ALONE, ENDED, JOINED, Meeting
from envbuilder.payload.report import CheckError
from tests.support.sleeping import Time

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def pair(tmp_path: Path, time: Time) -> list[Meeting]:
    """Two nodes of one attempt that have both come."""
    nodes = [Meeting(tmp_path, "a1", 2, n, time.monotonic, time.sleep) for n in range(2)]
    for node in nodes:
        node.join()
    return nodes


@pytest.mark.parametrize("text", ["1", "n-1.cluster", "4242.0", "a" * 64])
def test_names(text: str) -> None:
    assert meeting.name(text) == text


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a b", "-n", "a\n", "ä", "a" * 65])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError):
        meeting.name(text)


def test_files_of_other_attempts_are_not_seen(pair: list[Meeting], time: Time) -> None:
    for node in pair:
        node.leave(JOINED, {"name": node.number})
        node.leave(ENDED, {"reason": "ended", "returncode": 0})
    later = Meeting(pair[0].shared, "a2", 2, 0, time.monotonic, time.sleep)
    later.join()
    assert later.look(JOINED) == later.look(ENDED) == [{}, {}]
    assert not later.given_up()


def test_an_attempt_is_made_once(pair: list[Meeting]) -> None:
    with pytest.raises(CheckError, match="node 1 has taken part in attempt a1 before"):
        pair[1].join()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckError, match="Not a directory"):
        Meeting(tmp_path / "file", "a1", 2, 0).join()


def test_a_node_is_awaited(pair: list[Meeting], time: Time) -> None:
    pair[0].leave(JOINED, {"name": "n0"})
    time.events[7.0] = lambda: pair[1].leave(JOINED, {"name": "n1"})
    assert pair[0].gather(JOINED, 60.0) == [{"name": "n0"}, {"name": "n1"}]
    assert time.now == 7.0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (JOINED, "node 1 did not arrive within the limit"),
        (ALONE, "node 1 did not finish each device alone within the limit"),
    ],
)
def test_a_node_that_does_not_come_is_named_in_time(
    pair: list[Meeting], time: Time, kind: str, reason: str
) -> None:
    pair[0].leave(kind, {"name": "n0"})
    with pytest.raises(CheckError) as caught:
        pair[0].gather(kind, 60.0)
    assert str(caught.value) == reason
    assert 60.0 <= time.now < 62.0


def test_several_that_do_not_come_are_named(tmp_path: Path, time: Time) -> None:
    first = Meeting(tmp_path, "a", 3, 0, time.monotonic, time.sleep)
    first.join()
    first.leave(JOINED, {"name": "n0"})
    with pytest.raises(CheckError, match="nodes 1, 2 did not arrive"):
        first.gather(JOINED, 60.0)


def test_a_node_that_gave_up_is_not_awaited(pair: list[Meeting], time: Time) -> None:
    pair[0].leave(ALONE, {"devices": [1]})
    time.events[5.0] = lambda: pair[1].leave(ENDED, {"reason": "KeyboardInterrupt"})
    with pytest.raises(CheckError, match=r"^node 1: KeyboardInterrupt$"):
        pair[0].gather(ALONE, 60.0)
    assert time.now == 5.0
    # What it has done before it ended counts.
    pair[1].leave(ALONE, {"devices": [2]})
    assert pair[0].gather(ALONE, 60.0) == [{"devices": [1]}, {"devices": [2]}]


def test_ends_are_awaited_no_longer_than_agreed(pair: list[Meeting], time: Time) -> None:
    pair[0].leave(ENDED, {"returncode": 0})
    assert pair[0].await_ends(90.0) == [{"returncode": 0}, {}]
    assert 90.0 <= time.now < 92.0
    pair[1].leave(ENDED, {"returncode": 1})
    assert pair[0].await_ends(0.0) == [{"returncode": 0}, {"returncode": 1}]


@pytest.mark.parametrize(
    ("end", "given_up"),
    [
        ({"reason": "ended", "returncode": 0}, False),
        ({"reason": "no torch"}, True),
        ({"reason": "ended", "returncode": 1}, True),
        ({"reason": "hung", "returncode": None}, True),
    ],
)
def test_which_other_node_gave_up(pair: list[Meeting], end: dict[str, Any], given_up: bool) -> None:
    pair[1].leave(ENDED, end)
    assert pair[0].given_up() == ([1] if given_up else [])
    assert pair[1].given_up() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"null"])
def test_what_is_no_object_is_as_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert meeting.read(tmp_path / "x.json") == {}


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"x": "x" * meeting.MOST}))
    assert meeting.read(tmp_path / "x.json") == {}


def test_a_machine_is_its_boot(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("5f1c\n")
    assert meeting.machine(tmp_path / "boot_id") == "5f1c"
    assert meeting.machine(tmp_path / "none")
