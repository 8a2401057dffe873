"""The loopback index speaks what uv and pip ask for, to nobody who does not know its address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import requests

from envbuilder.packages.python import loopback, upstream
from envbuilder.packages.python.loopback import JSON_TYPE, Offer

if TYPE_CHECKING:
    from pathlib import Path

HASH = "b" * 64


def offer(**changes: object) -> Offer:
    fields: dict[str, object] = {
        "distribution": "Some_Thing", "version": "1.0+x", "sha256": HASH, "source": "here",
        "file": "some_thing-1.0+x-py3-none-any.whl", "provenance": "claim", "by": "me",
        "metadata": b"Metadata-Version: 2.1\n", "requires_python": ">=3.9", "size": 7,
    }  # fmt: skip
    return Offer(**{**fields, **changes})  # type: ignore[arg-type]


def get(url: str, **options: object) -> requests.Response:
    session = requests.Session()
    session.trust_env = False
    return session.get(url, timeout=5, **options)  # type: ignore[arg-type]


def test_both_kinds_of_pages_say_the_same() -> None:
    with loopback.serve([offer()]) as url:
        page = get(f"{url}/some-thing/", headers={"Accept": JSON_TYPE})
        html = get(f"{url}/Some.Thing/")
        assert page.headers["Content-Type"] == JSON_TYPE
        for text in (page.text, html.text):
            (found,) = upstream.parse_page(text, f"{url}/some-thing/", "some-thing", "here")
            assert found.file == offer().file
            assert found.sha256 == HASH
            assert found.requires_python == ">=3.9"
            assert get(found.metadata_url).content == offer().metadata


def test_the_root_lists_distributions() -> None:
    with loopback.serve([offer()]) as url:
        assert "some-thing" in get(f"{url}/").text
        found = get(f"{url}/", headers={"Accept": JSON_TYPE}).json()
        assert found["projects"] == [{"name": "some-thing"}]


def test_wheels_are_redirected_or_sent(tmp_path: Path) -> None:
    wheel = tmp_path / "b-1-py3-none-any.whl"
    wheel.write_bytes(b"bytes")
    offers = [
        offer(location="https://elsewhere.invalid/w.whl"),
        offer(file=wheel.name, distribution="b", location=str(wheel)),
        offer(file="c-1-py3-none-any.whl", distribution="c"),
        offer(file="d-1-py3-none-any.whl", distribution="d", location=str(tmp_path / "gone")),
    ]
    with loopback.serve(offers) as url:
        files = url.removesuffix("simple") + "files"
        moved = get(f"{files}/{offer().file.replace('+', '%2B')}", allow_redirects=False)
        assert moved.status_code == 302
        assert moved.headers["Location"] == "https://elsewhere.invalid/w.whl"
        assert get(f"{files}/{wheel.name}").content == b"bytes"
        assert get(f"{files}/c-1-py3-none-any.whl").status_code == 404
        assert get(f"{files}/d-1-py3-none-any.whl").status_code == 404
        head = requests.head(f"{files}/{wheel.name}", timeout=5)
        assert (head.status_code, head.content) == (200, b"")


def test_metadata_is_read_on_demand() -> None:
    def read(url: str) -> bytes:
        if "broken" in url:
            raise OSError
        return url.encode()

    offers = [
        offer(file="a-1-py3-none-any.whl", metadata=None, metadata_url="https://x/a"),
        offer(file="b-1-py3-none-any.whl", metadata=None, metadata_url="https://x/broken"),
        offer(file="c-1-py3-none-any.whl", metadata=None),
    ]
    with loopback.serve(offers, read) as url:
        files = url.removesuffix("simple") + "files"
        assert get(f"{files}/a-1-py3-none-any.whl.metadata").content == b"https://x/a"
        assert get(f"{files}/b-1-py3-none-any.whl.metadata").status_code == 502
        assert get(f"{files}/c-1-py3-none-any.whl.metadata").status_code == 404


@pytest.mark.parametrize("path", ["/", "/simple/some-thing/", "/files/../../etc/passwd"])
def test_without_the_secret_path_there_is_nothing(path: str) -> None:
    with loopback.serve([offer()]) as url:
        host = "/".join(url.split("/")[:3])
        assert get(host + path).status_code == 404


@pytest.mark.parametrize("path", ["unknown/", "some-thing/more/", "../files/x.whl", "../other"])
def test_unknown_things_are_not_found(path: str) -> None:
    with loopback.serve([offer()]) as url:
        assert get(f"{url}/{path}").status_code == 404


def test_it_ends_with_its_block_and_never_repeats_a_path() -> None:
    with loopback.serve([]) as one:
        pass
    with pytest.raises(requests.ConnectionError):
        get(one)
    with loopback.serve([]) as two:
        assert one.split("/")[3] != two.split("/")[3]
