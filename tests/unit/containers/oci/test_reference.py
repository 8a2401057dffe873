"""References, by docker's rules."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from envbuilder.containers.oci import reference
from envbuilder.core.errors import InvalidError

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("python", "docker.io/library/python"),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("me/image", "docker.io/me/image"),
        ("index.docker.io/me/image:1", "docker.io/me/image:1"),
        ("localhost:5000/a/b/c", "localhost:5000/a/b/c"),
        ("127.0.0.1:5000/image:t", "127.0.0.1:5000/image:t"),
        ("[::1]:5000/image", "[::1]:5000/image"),
        ("host:5000", "docker.io/library/host:5000"),
        ("Registry/image", "Registry/image"),
        ("ghcr.io/a/b__c-d.e_f", "ghcr.io/a/b__c-d.e_f"),
        (f"ghcr.io/a/b@{DIGEST}", f"ghcr.io/a/b@{DIGEST}"),
        (f"ghcr.io/a/b:tag@{DIGEST}", f"ghcr.io/a/b:tag@{DIGEST}"),
        (f"me/{HEX}", f"docker.io/me/{HEX}"),
        ("a:" + "t" * 128, "docker.io/library/a:" + "t" * 128),
    ],
)
def test_what_docker_takes(text: str, canonical: str) -> None:
    assert str(reference.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Image",
        "me/Image",
        "a//b",
        "/a",
        "a/",
        "a:",
        "a@",
        "a:tag with space",
        "a:-tag",
        "a:" + "t" * 129,
        "a..b",
        "a___b",
        "-a",
        "a-",
        "../etc",
        "ghcr.io/../etc",
        "https://ghcr.io/a",
        "user:secret@ghcr.io/a",
        "host:99999/a",
        "host:0/a",
        "ho_st.x/a",
        "[::1/a",
        "[:::]:5000/a",
        "[fe80::1%25eth0]/a",
        "a@sha256:abc",
        f"a@sha512:{HEX}{HEX}",
        f"a@{DIGEST}\n",
        "a\n",
        "a:b\n",
        f"a@{DIGEST.upper()}",
        HEX,
        "ghcr.io/" + "a" * 248,
    ],
)
def test_what_docker_refuses(text: str) -> None:
    with pytest.raises(InvalidError, match="is not an image reference"):
        reference.parse(text)


def test_limits_are_exact() -> None:
    assert reference.parse("ghcr.io/" + "a" * 247).repository == "a" * 247


def test_what_to_ask_for() -> None:
    assert reference.parse("python").tag_or_digest == "latest"
    assert reference.parse("python:3").tag_or_digest == "3"
    assert reference.parse(f"python:3@{DIGEST}").tag_or_digest == DIGEST
    assert reference.parse("python").endpoint == "registry-1.docker.io"
    assert reference.parse("ghcr.io/a").endpoint == "ghcr.io"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST:5000", True),
        ("127.0.0.1:5000", True),
        ("[::1]:5000", True),
        ("localhost.example", False),
        ("127.0.0.1.example:80", False),
        ("[2001:db8::1]:5000", False),
        ("docker.io", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert reference.is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        ("mirror.example", "mirror.example/library/python:3"),
        ("mirror.example:5000/hub", "mirror.example:5000/hub/library/python:3"),
        ("localhost/a/b", "localhost/a/b/library/python:3"),
    ],
)
def test_mirrors_are_asked_first(place: str, asked: str) -> None:
    python = reference.parse("python:3")
    found = reference.mirrored(python, {"docker.io": place})
    assert [str(f) for f in found] == [asked, str(python)]
    assert reference.mirrored(python, {"ghcr.io": place}) == (python,)


@pytest.mark.parametrize("place", ["mirror", "mirror/hub", "", "https://mirror.example", "a b"])
def test_a_mirror_is_a_host(place: str) -> None:
    with pytest.raises(InvalidError):
        reference.mirrored(reference.parse("python:3"), {"docker.io": place})


@given(st.text(max_size=80) | st.text("ab.:/@-_[]:0\n", max_size=40))
def test_any_text_is_read_to_something_stable_or_refused(text: str) -> None:
    try:
        found = reference.parse(text)
    except InvalidError:
        return
    assert reference.parse(str(found)) == found
    assert "\n" not in str(found)
    assert ".." not in found.repository
