"""Which requests push a blob: what each sends, and how an upload goes on after each answer."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from envbuilder.containers.oci.layout import LAYER_ZSTD, Layout
from envbuilder.containers.registry import push
from envbuilder.containers.registry.push import Sent
from envbuilder.core import files
from envbuilder.core.errors import BuildError
from tests.support.scripted_session import Far, answer

Make = Callable[..., "Bench"]

ROOT = "https://far.example/v2/a/blobs/"
CONTENT = b"0123456789"
DIGEST = "sha256:84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
QUERY = DIGEST.replace(":", "%3A")
ABSENT = ("HEAD", ROOT + DIGEST)
BEGUN = ("POST", ROOT + "uploads/")
GONE = requests.ConnectionError("gone")


class Bench(Far):
    """A blob of ten bytes, and a registry that gives these answers."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, answers: tuple[Any, ...]
    ) -> None:
        super().__init__(monkeypatch, *answers)
        self.notes = folder / "notes"
        self.layout = Layout.create(folder / "layout")
        self.blob = self.layout.add(CONTENT, LAYER_ZSTD)

    def send(self, mount_from: str = "") -> Sent:
        if mount_from:
            note = push._file(self.notes, f"far.example {self.blob.digest}", "repository")
            files.write(note, mount_from.encode())
        return push.send(self.connection, self.blob, self.layout, self.notes, self.shown.append)

    @property
    def requests(self) -> list[tuple[str, str]]:
        return self.session.requests

    def pieces(self) -> list[tuple[str | None, bytes]]:
        """The bytes that were sent, each with the range they were said to be."""
        return [
            (options["headers"].get("Content-Range"), options["data"])
            for options in self.session.options
            if options["data"]
        ]


def begun() -> tuple[requests.Response, requests.Response]:
    """The blob is not there, and an upload begins."""
    return answer(404), answer(202, Location="/up")


def taken(pieces: int) -> list[requests.Response]:
    """So many pieces are taken, and the upload is closed."""
    return [*[answer(202)] * pieces, answer(201)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """`bench(*answers)`: pieces are of four bytes, and at most of eight."""
    monkeypatch.setattr(push, "PIECE", 4)
    monkeypatch.setattr(push, "_PIECE_LIMIT", 8)
    return lambda *answers: Bench(monkeypatch, tmp_path, answers)


@pytest.fixture
def as_a_whole(bench: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`bench`, with a piece that holds the whole blob."""
    monkeypatch.setattr(push, "PIECE", 10)
    monkeypatch.setattr(push, "_PIECE_LIMIT", 10)
    return bench


@pytest.mark.parametrize(("location", "url"), [("/up?state=0", "up?state=0&"), ("/up", "up?")])
def test_a_small_blob_is_sent_as_a_whole(as_a_whole: Make, location: str, url: str) -> None:
    made = as_a_whole(answer(404), answer(202, Location=location), answer(201))
    assert made.send() == Sent(how="sent", bytes=10)
    closed = ("PUT", f"https://far.example/{url}digest={QUERY}")
    assert made.requests == [ABSENT, BEGUN, closed]
    assert made.pieces() == [(None, CONTENT)]
    assert made.session.options[1]["data"] == b"", "its length is stated"
    assert made.session.options[-1]["headers"]["Content-Type"] == "application/octet-stream"
    assert sum(made.shown) == 10


def test_a_large_blob_is_sent_in_pieces_to_where_each_answer_leads(bench: Make) -> None:
    made = bench(
        *begun(),
        answer(202, Location="/next?x=y", Range="0-3"),
        answer(204, Range="bytes=0-7"),
        answer(202, Location="/last"),
        answer(204),
    )
    assert made.send() == Sent(how="sent", bytes=10)
    far = "https://far.example"
    assert made.requests[2:] == [
        ("PATCH", f"{far}/up"), ("PATCH", f"{far}/next?x=y"), ("PATCH", f"{far}/next?x=y"),
        ("PUT", f"{far}/last?digest={QUERY}"),
    ]  # fmt: skip
    assert made.pieces() == [("0-3", b"0123"), ("4-7", b"4567"), ("8-9", b"89")]
    assert {options["headers"]["Content-Type"] for options in made.session.options[2:]} == {
        "application/octet-stream"
    }
    assert made.shown == [0, 4, 4, 2]


@pytest.mark.parametrize(
    ("least", "sizes"),
    [
        ("6", [6, 4]), ("2", [4, 4, 2]), ("999999999", [8, 2]), ("1000000000", [4, 4, 2]),
        ("-9", [4, 4, 2]),
    ],
)  # fmt: skip
def test_a_registry_may_require_larger_pieces(bench: Make, least: str, sizes: list[int]) -> None:
    made = bench(
        answer(404), answer(202, Location="/up", OCI_Chunk_Min_Length=least),
        *taken(len(sizes)),
    )  # fmt: skip
    made.send()
    assert [len(data) for _, data in made.pieces()] == sizes


def test_a_blob_that_is_there_is_not_sent_and_it_is_noted_where(bench: Make) -> None:
    made = bench(answer(200))
    assert made.send() == Sent(how="present", bytes=0)
    assert made.requests == [ABSENT]
    assert made.shown == [10]
    (note,) = made.notes.glob("*.repository")
    assert note.read_text() == "a"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert files.is_marked(made.notes), "clean removes it"


def test_a_note_that_cannot_be_written_fails_no_push(bench: Make) -> None:
    bench(answer(200)).send()
    made = bench(answer(200))
    (note,) = made.notes.glob("*.repository")
    note.unlink()
    note.mkdir()
    assert made.send() == Sent(how="present", bytes=0)


MOUNT = ("POST", f"{ROOT}uploads/?mount={QUERY}&from=b")


def test_a_blob_is_mounted(bench: Make) -> None:
    made = bench(answer(404), answer(201))
    assert made.send("b") == Sent(how="mounted", bytes=0)
    assert made.requests == [ABSENT, MOUNT]
    assert sum(made.shown) == 10


def test_a_registry_that_does_not_mount_may_begin_an_upload_at_once(bench: Make) -> None:
    made = bench(*begun(), *taken(3))
    assert made.send("b") == Sent(how="sent", bytes=10)
    assert made.requests[:3] == [ABSENT, MOUNT, ("PATCH", "https://far.example/up")]


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_a_mount_that_is_refused_becomes_an_upload(bench: Make, status: int) -> None:
    made = bench(answer(404), answer(status), answer(202, Location="/up"), *taken(3))
    assert made.send("b") == Sent(how="sent", bytes=10)
    assert made.requests[1:3] == [MOUNT, BEGUN]


@pytest.mark.parametrize("status", [400, 404, 405, 410, 416])
def test_an_upload_that_is_lost_goes_on_where_the_registry_says(bench: Make, status: int) -> None:
    made = bench(
        *begun(),
        answer(202, Location="/up?x=4", Range="0-3"),
        answer(status),  # the second piece
        answer(404),  # the blob is not there
        answer(204, Location="/up?x=6", Range="0-5"),
        answer(202, Location="/up?x=10", Range="0-9"),
        answer(201),
    )
    assert made.send() == Sent(how="sent", bytes=12)
    assert made.pauses == [1.0]
    assert made.requests[4:7] == [
        ABSENT, ("GET", "https://far.example/up?x=4"), ("PATCH", "https://far.example/up?x=6"),
    ]  # fmt: skip
    assert made.pieces()[-1] == ("6-9", b"6789")
    assert sum(made.shown) == 10


@pytest.mark.parametrize(
    "state",
    [answer(404), answer(403), answer(204, Range="0-10")],
    ids=["404", "403", "too far"],
)
def test_an_upload_that_is_gone_begins_again(bench: Make, state: requests.Response) -> None:
    made = bench(
        *begun(), GONE,
        answer(404), state, answer(202, Location="/again"),
        *taken(3),
    )  # fmt: skip
    assert made.send() == Sent(how="sent", bytes=14)
    assert made.requests[5:7] == [BEGUN, ("PATCH", "https://far.example/again")]
    assert sum(made.shown) == 10


@pytest.mark.parametrize("headers", [{}, {"Range": "0-0"}, {"Range": "none"}])
def test_an_upload_of_which_the_registry_has_nothing_goes_on_from_the_start(
    bench: Make, headers: dict[str, str]
) -> None:
    made = bench(
        *begun(), answer(202), GONE,
        answer(404), answer(204, **headers), *taken(3),
    )  # fmt: skip
    assert made.send() == Sent(how="sent", bytes=18)
    assert [said for said, _ in made.pieces()] == ["0-3", "4-7", "0-3", "4-7", "8-9"]


def test_a_small_blob_of_which_the_registry_has_a_part_goes_on_from_there(
    as_a_whole: Make,
) -> None:
    made = as_a_whole(
        *begun(), GONE,
        answer(404), answer(204, Range="0-5"), answer(202), answer(201),
    )  # fmt: skip
    assert made.send() == Sent(how="sent", bytes=14)
    assert made.pieces() == [(None, CONTENT), ("6-9", b"6789")]


def test_an_upload_that_begins_again_does_not_go_where_the_first_one_went(bench: Make) -> None:
    made = bench(*begun(), GONE, *[answer(404)] * 2, answer(202))
    with pytest.raises(BuildError, match="did not state where to upload the blob"):
        made.send()


def test_an_upload_of_which_the_registry_has_all_is_only_closed(bench: Make) -> None:
    made = bench(
        *begun(), GONE,
        answer(404), answer(202, Range="0-9"), answer(201),
    )  # fmt: skip
    assert made.send() == Sent(how="sent", bytes=4)
    assert made.requests[-1] == ("PUT", f"https://far.example/up?digest={QUERY}")
    assert made.session.options[-1]["data"] == b""


def test_if_only_the_last_answer_was_lost_nothing_is_sent_again(bench: Make) -> None:
    made = bench(*begun(), *[answer(202)] * 3, GONE, answer(200))
    assert made.send() == Sent(how="sent", bytes=10)
    assert made.requests[-1] == ABSENT
    assert sum(made.shown) == 10


def test_a_registry_that_takes_only_a_part_is_asked_how_far_it_is(bench: Make) -> None:
    made = bench(
        *begun(), answer(202, Range="0-1"),
        answer(404), answer(204, Range="0-1"), *taken(2),
    )  # fmt: skip
    assert made.send() == Sent(how="sent", bytes=12)
    assert made.pieces() == [("0-3", b"0123"), ("2-5", b"2345"), ("6-9", b"6789")]


def test_a_push_that_keeps_breaking_off_says_why(bench: Make) -> None:
    lost = (answer(404), answer(404), answer(202, Location="/up"), answer(410))
    made = bench(*begun(), answer(410), *lost * 3)
    with pytest.raises(BuildError, match=r"/a: .*: the registry refused the upload \(HTTP 410\)$"):
        made.send()
    assert made.pauses == [1.0, 2.0, 4.0]
    assert list(made.notes.glob("*.repository")) == []


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", f"{DIGEST}: the registry did not state where to upload the blob"),
        ("http://far.example/up", f"{DIGEST}: redirected to http://far.example"),
    ],
)
def test_an_upload_that_leads_nowhere(bench: Make, location: str, why: str) -> None:
    headers = {"Location": location} if location else {}
    made = bench(answer(404), answer(202, **headers))
    with pytest.raises(BuildError, match=why):
        made.send()
    assert made.pieces() == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"01234", "is shorter than the size in its manifest"),
        (None, "No such file or directory"),
    ],
)
def test_a_blob_that_changes_meanwhile(
    bench: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    why: str,
) -> None:
    made = bench(*begun(), answer(202))
    source = tmp_path / "changed"
    if content:
        source.write_bytes(content)
    monkeypatch.setattr(made.layout, "checked", lambda blob: source)
    with pytest.raises(BuildError, match=f"changed:? {why}"):
        made.send()


# --- before a push


def test_a_push_is_tried_by_an_upload_that_is_cancelled(bench: Make) -> None:
    made = bench(answer(202, Location="/up?x=y"), answer(204))
    push.require_allowed(made.connection)
    assert made.requests == [BEGUN, ("DELETE", "https://far.example/up?x=y")]
    assert made.session.options[0]["data"] == b""


@pytest.mark.parametrize(
    "cancelled",
    [
        (answer(202, Location="/up"), answer(503)),
        (answer(202, Location="/up"), answer(405)),
        (answer(202, Location="/up"), GONE),
        (answer(202),),
        (answer(202, Location="http://other.example/up"),),
    ],
    ids=["busy", "refused", "gone", "nowhere", "elsewhere"],
)
def test_an_upload_that_cannot_be_cancelled_is_left(bench: Make, cancelled: Any) -> None:
    made = bench(*cancelled)
    push.require_allowed(made.connection)
    assert made.pauses == []
    for _, url in made.requests:
        assert url.startswith("https://far.example/")
