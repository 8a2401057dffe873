"""Which requests pull a blob: what each asks for, and what becomes of what arrives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from envbuilder.containers.oci.layout import LAYER_ZSTD, Descriptor, Layout
from envbuilder.containers.registry import transfer
from envbuilder.core.errors import BuildError, WrongHashError
from tests.support.scripted_session import Far, answer

Make = Callable[..., "Bench"]

CONTENT = b"0123456789"
DIGEST = "sha256:84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"


def rest() -> requests.Response:
    return answer(206, CONTENT[4:], Content_Range="bytes 4-9/10")


class Bench(Far):
    """A blob of ten bytes, a layout that may have some of them, and a registry's answers."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, left: bytes, answers: tuple[Any, ...]
    ) -> None:
        super().__init__(monkeypatch, *answers)
        self.blob = Descriptor(media_type=LAYER_ZSTD, digest=DIGEST, size=10)
        self.layout = Layout(folder)
        self.part = folder / "partial" / DIGEST.removeprefix("sha256:")
        if left:
            Layout.create(folder)
            self.part.parent.mkdir()
            self.part.write_bytes(left)

    def receive(self) -> int:
        """Pull the blob, which must be there then, and shown to be; return what was transferred."""
        transferred = transfer.receive(self.connection, self.blob, self.layout, self.shown.append)
        assert self.layout.checked(self.blob).read_bytes() == CONTENT
        assert not self.part.exists()
        assert sum(self.shown) == 10
        return transferred

    def ranges(self) -> list[str]:
        """The range that each request asks for."""
        url = f"https://far.example/v2/a/blobs/{DIGEST}"
        assert set(self.session.requests) <= {("GET", url)}
        return [options["headers"].get("Range", "") for options in self.session.options]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """`bench(left, *answers)`: what an earlier try left, and the answers to this one."""
    return lambda left, *answers: Bench(monkeypatch, tmp_path, left, answers)


@pytest.mark.parametrize(
    ("left", "answers", "ranges", "transferred"),
    [
        (b"", [answer(200, CONTENT)], [""], 10),
        (b"", [answer(200, b"0123", Content_Length="10"), rest()], ["", "bytes=4-"], 10),
        (b"0123", [rest()], ["bytes=4-"], 6),
        (b"0123", [answer(200, CONTENT)], ["bytes=4-"], 10),
        (b"0123", [answer(416), answer(200, CONTENT)], ["bytes=4-", ""], 10),
        (b"!" * 10, [answer(200, CONTENT)], [""], 10),
        (b"!!!!", [rest(), answer(200, CONTENT)], ["bytes=4-", ""], 16),
        (b"!!!!", [answer(206, CONTENT, Content_Range="bytes 4-9/10"), answer(200, CONTENT)],
            ["bytes=4-", ""], 10),
        (
            b"0123",
            [answer(206, b"3456789", Content_Range="bytes 3-9/10"), answer(200, CONTENT)],
            ["bytes=4-", ""],
            10,
        ),
        (b"0123", [answer(206, CONTENT[4:]), answer(200, CONTENT)], ["bytes=4-", ""], 10),
    ],
    ids=[
        "whole", "cut", "rest", "all again", "no such part", "rotten",
        "rotten start", "longer than the rest", "elsewhere", "unsaid",
    ],
)  # fmt: skip
def test_only_what_is_missing_is_asked_for(
    bench: Make, left: bytes, answers: list[Any], ranges: list[str], transferred: int
) -> None:
    made = bench(left, *answers)
    assert made.receive() == transferred
    assert made.ranges() == ranges


@pytest.mark.parametrize(
    ("left", "answers", "requests_"),
    [
        (b"", [answer(200, b"!" * 10)], 1),
        (b"", [answer(200, CONTENT + b"!")], 1),
        (b"", [answer(200, CONTENT, Content_Length="999999999")], 1),
        (b"!!!!", [rest(), answer(200, b"!" * 10)], 2),
    ],
    ids=["wrong", "longer", "announced longer", "wrong twice"],
)
def test_wrong_bytes_are_not_kept_and_not_asked_for_again(
    bench: Make, left: bytes, answers: list[Any], requests_: int
) -> None:
    made = bench(left, *answers)
    with pytest.raises(WrongHashError, match=f"^far.example/a: {DIGEST}: the received content"):
        made.receive()
    assert len(made.ranges()) == requests_
    assert not made.part.exists()
    assert not made.layout.blob(DIGEST).exists()


@pytest.mark.parametrize("status", [204, 206, 404, 416])
def test_an_answer_that_was_not_asked_for_is_a_refusal(bench: Make, status: int) -> None:
    made = bench(b"", answer(status))
    with pytest.raises(BuildError, match=f"{DIGEST}: HTTP {status}$"):
        made.receive()
    assert made.ranges() == [""]
