"""The site builds without a broken link, and its pages load nothing from another host."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conftest import missing, ran, succeeded

LOADED = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("embed", "src"),
    ("object", "data"),
}
LINKED = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}
ELSEWHERE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)


class Resources(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found |= {value or "" for name, value in attrs if (tag, name) in LOADED}
        if tag == "link" and LINKED & set((values.get("rel") or "").split()):
            self.found.add(values.get("href") or "")


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of its sources."""
    program = Path(sys.executable).with_name("zensical")
    if not program.exists():
        missing("zensical", "it comes with `python3 bootstrap.py setup dev`")
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(repository / "zensical.toml", folder)
    shutil.copytree(repository / "docs", folder / "docs")
    succeeded(ran([program, "build", "--strict"], cwd=folder))
    return folder / "build/site"


def elsewhere(site: Path) -> Iterator[str]:
    for page in sorted(site.rglob("*.html")):
        resources = Resources()
        resources.feed(page.read_text(encoding="utf-8"))
        yield from (f"{page.name}: {u}" for u in resources.found if ELSEWHERE.match(u))
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        urls = re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", text)
        yield from (f"{sheet.name}: {u}" for pair in urls for u in pair if ELSEWHERE.match(u))


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    assert list(elsewhere(site)) == []


def test_every_page_is_built_and_in_the_navigation(site: Path, repository: Path) -> None:
    docs = repository / "docs"
    pages = {p.relative_to(docs).with_suffix(".html").as_posix() for p in docs.rglob("*.md")}
    index = (site / "index.html").read_text(encoding="utf-8")
    for page in pages:
        assert (site / page).is_file()
        assert f'href="{page}"' in index, page
