"""Where files are: uv leaves the login of an index out of the URLs that it lists."""

from __future__ import annotations

import pytest

from envbuilder.packages.locations import with_login

FILE = "https://index.example/files/top-1.0-py3-none-any.whl"
LOGIN = "https://me:p%40ss@index.example/files/top-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("variable", "value", "url"),
    [
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@index.example/simple", LOGIN),
        ("UV_INDEX_URL", "https://me:p%40ss@index.example/simple", LOGIN),
        ("UV_INDEX", "https://a.example lab=https://me:p%40ss@index.example/x", LOGIN),
        ("UV_EXTRA_INDEX_URL", "https://me:p%40ss@index.example", LOGIN),
        ("UV_DEFAULT_INDEX", "https://index.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@other.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@index.example:8443/simple", FILE),
        ("UV_DEFAULT_INDEX", "http://me:p%40ss@index.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@index.example.evil.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://evil.example/@index.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "/folder", FILE),
    ],
)
def test_only_the_same_server_gets_a_login(variable: str, value: str, url: str) -> None:
    assert with_login(FILE, {variable: value}) == url


@pytest.mark.parametrize("url", [LOGIN, "file:///folder/top-1.0-py3-none-any.whl", ""])
def test_other_locations_stay(url: str) -> None:
    assert with_login(url, {"UV_DEFAULT_INDEX": "https://x:y@index.example/simple"}) == url
