"""No credential of a URL stays in text, whoever wrote it, and little else is taken out."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.text import is_public, log_text, public, redacted

SECRET = "c4nary"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"https://me:{SECRET}@host/simple", "https://…@host/simple"),
        (f"https://{SECRET}@host:80/x and", "https://…@host:80/x and"),
        (f"http://u:{SECRET}@{SECRET}@host/x", "http://…@host/x"),
        (f"http://u:{SECRET}/{SECRET}@host:80/x", "http://…@host:80/x"),
        (f"http://u:{SECRET}?{SECRET}#@host/x", "http://…@host/x"),
        (f"Failed to parse: http://u:{SECRET}@host:bad/x", "Failed to parse: http://…@host:bad/x"),
        (f"('http://u:{SECRET}@h', 3)", "('http://…@h', 3)"),
        (f"u:{SECRET}@proxy:3128", "…@proxy:3128"),
        (f"proxy=u:{SECRET}@proxy:3128", "proxy=…@proxy:3128"),
        (f"https://host/x?token={SECRET}&y=1 and", "https://host/x?… and"),
        (f"https://host/x?{SECRET}", "https://host/x?…"),
        (f"https://host/t/{SECRET}/lab/noarch", "https://host/t/…/lab/noarch"),
        (f"https%3A%2F%2Fu%3A{SECRET}%40host%2Fx", "https%3A%2F%2F…%40host%2Fx"),
        (f"Authorization: Basic {SECRET}==", "Authorization: Basic …"),
        (f"{{'authorization': 'Bearer {SECRET}'}}", "{'authorization': 'Bearer …'}"),
        (
            f"cannot be cast to integer value as '{SECRET}'",
            "cannot be cast to integer value as '…'",
        ),
        (f"one\nhttps://{SECRET}@a\nu:{SECRET}@b", "one\nhttps://…@a\n…@b"),
    ],
)
def test_credentials_are_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/a@b/c and http://[::1]:80/x, (https://host/simple/).",
        "http://[::1/d cannot be parsed",
        "python:3.12@sha256:0123, registry:5000/python:3.12-slim@sha512:01",
        "file:///home/me@work/wheels",
        "git@github.com:owner/name, me@host.example",
        "Basic authorization is needed; /t/lab on this machine",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redacted(text) == text


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.sampled_from(["http", "https", "socks5", "oci"]),
    st.sampled_from(["", ":8080", ":bad"]),
)
def test_no_password_survives_in_the_form_that_urls_have(word: str, scheme: str, port: str) -> None:
    password = f"{SECRET}{quote(word, safe='')}"
    url = f"{scheme}://me:{password}@host{port}/simple"
    for text in (url, f"tried {url}, twice", f"'{url}'", quote(url, safe="")):
        assert SECRET not in redacted(text)
        assert "host" in redacted(text)


@given(st.text(st.characters(), max_size=300))
def test_any_text_can_be_redacted(text: str) -> None:
    log_text(text).encode()


@pytest.mark.parametrize(
    "text",
    ["a", "://", "://a:b", "a:", "@", "%3A%2F%2F", " a:b", "'a:", "authorization: a ", "/t/", "?"],
)
def test_a_megabyte_takes_no_time(text: str) -> None:
    started = time.process_time()
    redacted("://" + text * (1_000_000 // len(text)) + "@")
    assert time.process_time() - started < 3


def test_no_error_holds_credentials() -> None:
    url = f"https://me:{SECRET}@host/simple"
    error = EnvbuilderError(f"{url} does not answer", f"Set {url}")
    assert error.message == str(error) == "https://…@host/simple does not answer"
    assert error.hint == "Set https://…@host/simple"


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("https://host/simple", "https://host/simple"),
        ("https://host:80/simple/", "https://host:80/simple/"),
        ("file:///folder", "file:///folder"),
        (f"https://me:{SECRET}@host/simple", "https://host/simple"),
        (f"https://{SECRET}@host:80/simple", "https://host:80/simple"),
        (f"https://host/simple?token={SECRET}", "https://host/simple"),
        (f"https://host/simple#{SECRET}", "https://host/simple"),
        (f"https://host/t/{SECRET}/lab", "https://host/lab"),
        (f"https://host/lab/t/{SECRET}", "https://host/lab"),
    ],
)
def test_a_public_url_holds_no_credentials(url: str, without: str) -> None:
    assert public(url) == without
    assert is_public(url) == (url == without)
