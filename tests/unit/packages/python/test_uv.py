"""The index that uv resolves with."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import UnreachableError
from envbuilder.core.process import Completed
from envbuilder.packages import upstream
from envbuilder.packages.python import uv
from envbuilder.packages.python.uv import Offer
from envbuilder.profiles import releases

HASH = "b" * 64


def offer(**changes: Any) -> Offer:
    fields: dict[str, Any] = {
        "distribution": "Some_Thing", "version": "1.0+x", "sha256": HASH, "source": "up",
        "file": "some_thing-1.0+x-py3-none-any.whl", "provenance": "claim", "by": "me",
        "requires_dist": ('leaf; python_version > "3"',), "requires_python": ">=3.9", "size": 7,
    }  # fmt: skip
    return Offer(**{**fields, **changes})


def listed(folder: Path, name: str = "some-thing") -> tuple[Offer, ...]:
    page = folder / "simple" / name / "index.html"
    return upstream.parse_page(page.read_text(), page.as_uri(), name, "up")


def settings(folder: Path) -> dict[str, Any]:
    """What uv.toml says, without what a table of envbuilder's says of any index."""
    stated = tomllib.loads((folder / "uv.toml").read_text(encoding="utf-8"))
    names = {row.distribution for row in releases.unstated()}
    entries = [e for e in stated.pop("dependency-metadata", ()) if e["name"] not in names]
    return {**stated, "dependency-metadata": entries} if entries else stated


def test_what_wheels_do_not_state_is_stated_for_them(tmp_path: Path) -> None:
    uv.write_index([], tmp_path)
    entries = tomllib.loads((tmp_path / "uv.toml").read_text())["dependency-metadata"]
    assert {
        "name": "torchtext",
        "version": "0.18.0",
        "requires-dist": ["tqdm", "requests", "torch>=2.3.0,<2.4", "numpy"],
    } in entries


def test_a_claim_is_listed_with_its_hash_and_requirements(tmp_path: Path) -> None:
    index = uv.write_index([offer()], tmp_path)
    assert index.url == (tmp_path / "simple").as_uri()
    (found,) = listed(tmp_path)
    assert (found.file, found.sha256) == (offer().file, HASH)
    assert (found.requires_python, found.core_metadata) == (">=3.9", False)
    assert settings(tmp_path) == {
        "dependency-metadata": [
            {
                "name": "some-thing",
                "version": "1.0+x",
                "requires-dist": ['leaf; python_version > "3"'],
                "requires-python": ">=3.9",
            }
        ]
    }
    # No such file exists, and uv needs none.
    assert index.offers == {found.location.replace("%2B", "+"): offer()}


def test_a_wheel_that_can_be_had_is_listed_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    wheel = tmp_path / "a folder/b-1-py3-none-any.whl"
    url = "https://up.invalid/c-1-py3-none-any.whl"
    plain = offer(requires_dist=None)
    offers = [
        offer(distribution="b", file=wheel.name, location=str(wheel), requires_dist=None),
        offer(
            distribution="c", file="c-1-py3-none-any.whl", location=url, requires_dist=None,
            core_metadata=True,
        ),
    ]  # fmt: skip
    index = uv.write_index([plain, *offers], tmp_path)
    (local,), (remote,) = listed(tmp_path, "b"), listed(tmp_path, "c")
    assert (local.location, index.offers[unquote(local.location)]) == (wheel.as_uri(), offers[0])
    assert (remote.location, remote.core_metadata) == (url, True)
    assert index.offers[url] == offers[1]
    assert settings(tmp_path) == {}  # uv reads the requirements itself


def test_all_wheels_of_a_distribution_are_on_one_page(tmp_path: Path) -> None:
    files = [f"some_thing-1.0+x-cp3{n}-none-any.whl" for n in (11, 12)]
    uv.write_index([offer(file=f) for f in files], tmp_path)
    assert [o.file for o in listed(tmp_path)] == files
    assert len(settings(tmp_path)["dependency-metadata"]) == 1


def test_what_an_index_states_is_no_markup(tmp_path: Path) -> None:
    odd = offer(requires_python='"><a href="x">', location='https://up.invalid/"><a href="y">')
    uv.write_index([odd], tmp_path)
    assert (tmp_path / "simple/some-thing/index.html").read_text().count("<a ") == 1


@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_any_requirement_is_one_string(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("index")
    uv.write_index([offer(requires_dist=(text,))], folder)
    (entry,) = settings(folder)["dependency-metadata"]
    assert entry["requires-dist"] == [text]


def test_a_configuration_that_the_user_names_does_not_hide_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    uv.write_index([offer()], work)
    assert uv.index_variables(work, {}) == {}
    mine = {"UV_CONFIG_FILE": str(work / "uv.toml")}
    assert uv.index_variables(work, {"UV_NO_CONFIG": "1"}) == mine
    assert list(settings(work)) == ["dependency-metadata"]
    named = tmp_path / "named.toml"
    named.write_text('[[index]]\nurl = "https://i"')
    assert uv.index_variables(work, {"UV_CONFIG_FILE": str(named)}) == mine
    assert settings(work)["index"] == [{"url": "https://i"}]
    assert "dependency-metadata" in settings(work)
    # uv itself says that it cannot read this one.
    assert uv.index_variables(work, {"UV_CONFIG_FILE": str(tmp_path / "none")}) == {}


REFUSED = """\
error: Request failed after 3 retries in 5.7s
  cause: Failed to fetch: `https://me:secret@index.example/simple/six/`
  cause: error sending request for url (https://me:secret@index.example/simple/six/)
  cause: Connection refused (os error 111)
"""


def test_an_index_that_does_not_answer_is_4_and_named(tmp_path: Path) -> None:
    def run(argv: Any, **_: Any) -> Completed:
        return Completed(tuple(argv), 2, "", REFUSED, 0.1)

    question = uv.Uv(
        run=run,
        folder=tmp_path,
        cache=tmp_path / "cache",
        environment={},
        find_links=(),
        index=uv.write_index([], tmp_path),
        memory=uv.Memory(answers={}),
    )
    with pytest.raises(UnreachableError) as caught:
        question.compile(["six"], "linux/amd64", "3.11", {})
    assert caught.value.exit_code == 4
    assert caught.value.message == (
        "the index index.example cannot be reached: Connection refused (os error 111)"
    )


def test_pages_are_kept_of_indexes_elsewhere_without_a_login(tmp_path: Path) -> None:
    indexes = (
        "https://index.example/simple",
        "https://me:secret@index.example/simple",
        "http://127.0.0.1:3141/simple",
    )
    uv.write_index([], tmp_path, indexes)
    text = (tmp_path / "uv.toml").read_text()
    (entry,) = tomllib.loads(text)["index"]
    assert entry["url"] == "https://index.example/simple"
    assert entry["explicit"]
    assert entry["cache-control"]["api"] == "max-age=300"
    assert "secret" not in text
