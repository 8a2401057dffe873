"""Which requests push a blob: what each sends, and how an upload goes on after each answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from envbuilder.containers.oci.layout import LAYER_ZSTD, Layout
from envbuilder.containers.registry import transfer
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
        self.layout = Layout.create(folder / "layout")
        self.blob = self.layout.add(CONTENT, LAYER_ZSTD)

    def send(self) -> int | None:
        return transfer.send(self.connection, self.blob, self.layout, self.shown.append)

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


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """`bench(*answers)`: pieces are of four bytes, and at most of eight."""
    monkeypatch.setattr(transfer, "PIECE", 4)
    monkeypatch.setattr(transfer, "_PIECE_LIMIT", 8)
    return lambda *answers: Bench(monkeypatch, tmp_path, answers)


@pytest.mark.parametrize(("location", "url"), [("/up?state=0", "up?state=0&"), ("/up", "up?")])
def test_a_small_blob_is_sent_as_a_whole(
    bench: Make, monkeypatch: pytest.MonkeyPatch, location: str, url: str
) -> None:
    monkeypatch.setattr(transfer, "PIECE", 10)
    monkeypatch.setattr(transfer, "_PIECE_LIMIT", 10)
    made = bench(answer(404), answer(202, Location=location), answer(201))
    assert made.send() == 10
    closed = ("PUT", f"https://far.example/{url}digest={QUERY}")
    assert made.requests == [ABSENT, BEGUN, closed]
    assert made.pieces() == [(None, CONTENT)]
    assert made.session.options[1]["data"] == b"", "its length is stated"
    assert made.session.options[-1]["headers"]["Content-Type"] == "application/octet-stream"
    assert sum(made.shown) == 10


def test_a_large_blob_is_sent_in_pieces_to_where_each_answer_leads(bench: Make) -> None:
    made = bench(
        answer(404),
        answer(202, Location="/up"),
        answer(202, Location="/next?x=y", Range="0-3"),
        answer(204, Range="bytes=0-7"),
        answer(202, Location="/last"),
        answer(204),
    )
    assert made.send() == 10
    far = "https://far.example"
    assert made.requests[2:] == [
        ("PATCH", f"{far}/up"), ("PATCH", f"{far}/next?x=y"), ("PATCH", f"{far}/next?x=y"),
        ("PUT", f"{far}/last?digest={QUERY}"),
    ]  # fmt: skip
    assert made.pieces() == [("0-3", b"0123"), ("4-7", b"4567"), ("8-9", b"89")]
    assert {options["headers"]["Content-Type"] for options in made.session.options[2:]} == {
        "application/octet-stream"
    }
    assert made.shown == [4, 4, 2, 0]


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
        *[answer(202)] * len(sizes), answer(201),
    )  # fmt: skip
    made.send()
    assert [len(data) for _, data in made.pieces()] == sizes


def test_a_blob_that_is_there_is_not_sent(bench: Make) -> None:
    made = bench(answer(200))
    assert made.send() is None
    assert made.requests == [ABSENT]
    assert made.shown == [10]


@pytest.mark.parametrize("lost", [GONE, *map(answer, [400, 404, 405, 410, 416])], ids=repr)
def test_an_upload_that_is_lost_begins_again(bench: Make, lost: Any) -> None:
    made = bench(
        answer(404), answer(202, Location="/up"), answer(202), lost,
        answer(404), answer(202, Location="/again"), *[answer(202)] * 3, answer(201),
    )  # fmt: skip
    assert made.send() == 14
    assert made.requests[4:7] == [ABSENT, BEGUN, ("PATCH", "https://far.example/again")]
    assert sum(made.shown) == 10


def test_if_only_the_last_answer_was_lost_nothing_is_sent_again(bench: Make) -> None:
    made = bench(answer(404), answer(202, Location="/up"), *[answer(202)] * 3, GONE, answer(200))
    assert made.send() == 10
    assert made.requests[-1] == ABSENT
    assert sum(made.shown) == 10


def test_a_push_that_keeps_breaking_off_says_why(bench: Make) -> None:
    lost = (answer(404), answer(202, Location="/up"), answer(410))
    made = bench(answer(404), answer(202, Location="/up"), answer(410), *lost * 3)
    with pytest.raises(BuildError, match=r"/a: .*: the registry refused it \(HTTP 410\)$"):
        made.send()
    assert made.pauses == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", f"{DIGEST}: the registry did not state where to upload it"),
        ("http://far.example/up", f"{DIGEST}: redirected to http://far.example"),
    ],
)
def test_an_upload_that_leads_nowhere(bench: Make, location: str, why: str) -> None:
    headers = {"Location": location} if location else {}
    made = bench(answer(404), answer(202, **headers))
    with pytest.raises(BuildError, match=why):
        made.send()
    assert made.pieces() == []


def test_a_blob_that_is_gone_meanwhile(
    bench: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(answer(404), answer(202, Location="/up"))
    monkeypatch.setattr(made.layout, "checked", lambda blob: tmp_path / "gone")
    with pytest.raises(BuildError, match="gone: No such file or directory"):
        made.send()


# --- before a push


def test_a_push_is_tried_by_an_upload_that_is_cancelled(bench: Make) -> None:
    made = bench(answer(202, Location="/up?x=y"), answer(204))
    transfer.require_allowed(made.connection)
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
    transfer.require_allowed(made.connection)
    assert made.pauses == []
    for _, url in made.requests:
        assert url.startswith("https://far.example/")
