"""What registries ask for, and tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.containers.registry import challenges
from envbuilder.containers.registry.challenges import Challenge


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            'Bearer realm="https://auth.example/token",service="registry",'  # noqa: ISC004
            'scope="repository:a/b:pull,push"',
            [
                (
                    "bearer",
                    {
                        "realm": "https://auth.example/token",
                        "service": "registry",
                        "scope": "repository:a/b:pull,push",
                    },
                )
            ],
        ),
        ('Basic realm="a b, c"', [("basic", {"realm": "a b, c"})]),
        ("BASIC Realm=plain", [("basic", {"realm": "plain"})]),
        (
            'Bearer realm="x", Basic realm="y"',
            [("bearer", {"realm": "x"}), ("basic", {"realm": "y"})],
        ),
        ('Negotiate, Basic realm="y"', [("negotiate", {}), ("basic", {"realm": "y"})]),
        ('Bearer realm = "x" , service = "y"', [("bearer", {"realm": "x", "service": "y"})]),
        (r'Basic realm="say \"so\""', [("basic", {"realm": 'say "so"'})]),
        ('Bearer realm="first",realm="second"', [("bearer", {"realm": "first"})]),
        (
            'Basic realm="y", "stray", Bearer realm="x"',
            [("basic", {"realm": "y"}), ("bearer", {"realm": "x"})],
        ),
        ("", []),
        ('realm="of nothing"', []),
        ('Basic realm="unfinished', [("basic", {"realm": '"unfinished'})]),
    ],
)
def test_challenges(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert challenges.parse(header) == tuple(Challenge(s, p) for s, p in expected)


WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
MADE = st.lists(
    st.builds(
        Challenge,
        WORD.map(str.lower),
        st.dictionaries(WORD.map(str.lower), VALUE.map(str.strip), min_size=1, max_size=3),
    ),
    max_size=3,
)


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(MADE)
def test_what_is_written_by_the_rules_is_read(made: list[Challenge]) -> None:
    header = ", ".join(
        f"{c.scheme} " + ",".join(f"{k}={quoted(v)}" for k, v in c.parameters.items()) for c in made
    )
    assert list(challenges.parse(header)) == made


@given(st.text(max_size=200) | st.text('Bearer realm="x",\\= ', max_size=60))
def test_any_header_is_read(header: str) -> None:
    challenges.parse(header)


@pytest.mark.parametrize(
    ("body", "token"),
    [
        (b'{"token": "abc"}', "abc"),
        (b'{"access_token": "abc"}', "abc"),
        (b'{"token": "abc", "access_token": "other", "expires_in": 300}', "abc"),
        (b'{"token": null, "access_token": "abc"}', "abc"),
        (b"{}", ""),
        (b'{"token": 5}', ""),
        (b'{"token": "with\\r\\nHeader: injected"}', ""),
        (b'{"token": "with space"}', ""),
        (json.dumps({"token": "a" * 65537}).encode(), ""),
        (b"no json", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_tokens(body: bytes, token: str) -> None:
    assert challenges.token(body) == token
