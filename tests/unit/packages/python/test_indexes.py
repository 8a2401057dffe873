"""pip's configuration is read as pip reads it, and uv gets the same meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import pip
from envbuilder.core.errors import InvalidError
from envbuilder.core.pip import Sources
from envbuilder.core.settings import Configuration, Settings
from envbuilder.packages.python import indexes


def own(folder: Path, **urls: str) -> Settings:
    return Settings(
        project=None, config_dir=folder, cache_dir=folder, data_dir=folder,
        configuration=Configuration(indexes=urls),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n", "a: "),
        ("a: {kind: simple, url: 'https://x/y', wat: z, what: z}\n", "unknown key"),
        ("a: {kind: folder, url: 'ftp://x/y', what: z}\n", "url"),
        ("a: {kind: folder, url: 'https://x/y/', what: z}\n", "url"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "indexes.yaml").write_text(text)
    with pytest.raises(InvalidError, match=message):
        indexes.upstreams(tmp_path)


def test_environment_then_configuration_then_table(tmp_path: Path) -> None:
    configured = own(tmp_path, **{"pytorch-cpu": "https://mirror/cpu/"})
    env = {"ENVBUILDER_INDEX_PYTORCH_CPU": "https://other/cpu/"}
    assert indexes.url("pytorch-cpu", configured, env) == "https://other/cpu"
    assert indexes.url("pytorch-cpu", configured, {}) == "https://mirror/cpu"
    assert indexes.url("pytorch-xpu", configured, {}).startswith("https://")
    with pytest.raises(InvalidError, match="'nowhere' has no URL") as caught:
        indexes.url("nowhere", configured, {})
    assert "ENVBUILDER_INDEX_NOWHERE" in caught.value.hint


def test_later_files_and_variables_win() -> None:
    site = "[global]\nindex-url = https://a/simple\nfind-links = /one\n"
    user = "[global]\nindex_url = https://b/simple\n[install]\nfind-links =\n    /two\n    /three\n"
    found = pip.pip_sources({}, [site, user])
    assert found.index_url == "https://b/simple"
    assert found.find_links == ("/two", "/three")
    found = pip.pip_sources({"PIP_INDEX_URL": "https://c", "PIP_FIND_LINKS": ""}, [site, user])
    assert found.index_url == "https://c"
    assert found.find_links == ("/two", "/three")


def test_uv_merges_extra_indexes_as_pip_does(tmp_path: Path) -> None:
    gone = (tmp_path / "gone").as_uri()
    there = tmp_path.as_uri()
    found = Sources(index_url="https://i", extra_index_urls=(gone, there, "https://e"))
    result = indexes.uv_environment(found, {}, ("http://first",))
    assert result["UV_DEFAULT_INDEX"] == "https://i"
    assert result["UV_INDEX"] == f"http://first {there} https://e"
    assert result["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_uvs_own_variables_win() -> None:
    found = Sources(
        index_url="https://i", extra_index_urls=("https://e",), cert="/c", proxy="http://p",
        timeout="9", trusted_hosts=("h",),
    )  # fmt: skip
    env = {
        "UV_DEFAULT_INDEX": "https://u", "UV_INDEX": "https://v", "SSL_CERT_FILE": "/d",
        "ALL_PROXY": "q", "UV_HTTP_TIMEOUT": "1", "UV_INSECURE_HOST": "g",
    }  # fmt: skip
    assert indexes.uv_environment(found, env) == {"UV_INDEX": "https://v"}


def test_without_extra_indexes_uv_keeps_its_safe_strategy() -> None:
    result = indexes.uv_environment(Sources(), {}, ("http://first",))
    assert "UV_INDEX_STRATEGY" not in result
    assert indexes.uv_environment(Sources(), {}) == {}


def test_certificates_proxy_and_hosts_are_handed_on() -> None:
    found = Sources(
        cert="/c", proxy="http://p", timeout="9", trusted_hosts=("h", "i"), no_index=True
    )
    assert indexes.uv_environment(found, {}) == {
        "SSL_CERT_FILE": "/c", "ALL_PROXY": "http://p", "UV_HTTP_TIMEOUT": "9",
        "UV_INSECURE_HOST": "h i", "UV_NO_INDEX": "1",
    }  # fmt: skip


@given(st.text(max_size=300))
def test_any_text_is_a_pip_conf_or_nothing(text: str) -> None:
    assert isinstance(pip.pip_sources({}, [text]), Sources)


UNPARSABLE = [
    "http://[::1/d",
    "https://[x]/",
    "http://host:99999/",
    "http://host:port/",
    "http://:80/x",
]


@pytest.mark.parametrize("url", UNPARSABLE)
def test_a_url_that_cannot_be_parsed_is_a_sentence(url: str, found: Settings) -> None:
    environ = {"ENVBUILDER_INDEX_PYTORCH_CPU": url}
    with pytest.raises(InvalidError, match="pytorch-cpu") as caught:
        indexes.override("pytorch-cpu", found, environ)
    assert url not in caught.value.message
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY"):
        environ = {name: url, "PIP_CONFIG_FILE": "/dev/null"}
        with pytest.raises(InvalidError, match="cannot be parsed") as caught:
            pip.sources(environ)
        assert url not in caught.value.message


FILE = "https://index.example/files/top-1.0-py3-none-any.whl"
LOGIN = "https://me:p%40ss@index.example/files/top-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("variable", "value", "url"),
    [
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@index.example/simple", LOGIN),
        ("UV_INDEX", "https://a.example lab=https://me:p%40ss@index.example/x", LOGIN),
        ("UV_EXTRA_INDEX_URL", "https://me:p%40ss@index.example", LOGIN),
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@other.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@index.example:8443/simple", FILE),
        ("UV_DEFAULT_INDEX", "http://me:p%40ss@index.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://me:p%40ss@index.example.evil.example/simple", FILE),
        ("UV_DEFAULT_INDEX", "https://evil.example/@index.example/simple", FILE),
    ],
)
def test_only_the_same_server_gets_a_login(variable: str, value: str, url: str) -> None:
    assert indexes.with_login(FILE, {variable: value}) == url


@pytest.mark.parametrize("url", [LOGIN, "file:///folder/top-1.0-py3-none-any.whl", ""])
def test_other_locations_stay(url: str) -> None:
    assert indexes.with_login(url, {"UV_DEFAULT_INDEX": "https://x:y@index.example/simple"}) == url
