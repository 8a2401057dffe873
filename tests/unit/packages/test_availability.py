"""What stands in the way of a target, by the pages of an index alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import requests
from packaging.requirements import Requirement

from envbuilder.locks.blockers import explained
from envbuilder.packages import index_pages
from envbuilder.packages.availability import Blocker, Walk
from envbuilder.packages.fetch import Place
from envbuilder.packages.index_pages import Index
from envbuilder.packages.python import upstream
from envbuilder.packages.python.uv import Offer
from tests.support.user_index import refused

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.packages.python.upstream import Listed

LINUX = ("linux/amd64", "3.11")
ANY = "py3-none-any"
PYTHON_310 = "cp310-cp310-manylinux2014_x86_64"
PAGES: dict[str, dict[str, str]] = {
    # File → when it was uploaded.
    "app": {f"app-1.0-{ANY}.whl": "2021-01-01", f"app-2.0-{ANY}.whl": "2024-01-01"},
    "old": {"old-1.0.tar.gz": "2020-01-01"},
    "compiled": {f"compiled-1.0-{PYTHON_310}.whl": "2020-01-01", "compiled-1.0.tar.gz": ""},
    "binary": {f"binary-1.0-{PYTHON_310}.whl": "2020-01-01"},
    "low": {f"low-{v}-{ANY}.whl": "2020-01-01" for v in ("1.0", "2.0", "3.0rc1")},
    "yanked": {f"yanked-1.0-{ANY}.whl": "2020-01-01"},
}
REQUIRES = {
    "app-1.0": ["low<2"],
    "app-2.0": [
        *("old", "low>=1; python_version >= '3.8'"),
        *("compiled; extra == 'fast'", "gone; os_name == 'nt'"),
    ],
}  # fmt: skip


def page(url: str) -> bytes:
    name = url.rstrip("/").rpartition("/")[2]
    if name not in PAGES:
        raise refused(404)
    files = [
        {
            "filename": file,
            "url": f"../../files/{file}",
            "hashes": {},
            "upload-time": f"{day}T00:00:00Z" if day else "",
            "yanked": "broken" if name == "yanked" else False,
        }
        for file, day in PAGES[name].items()
    ]
    return json.dumps({"files": files}).encode()


def stated(wheel: Listed) -> list[str]:
    return REQUIRES.get("-".join(wheel.file.split("-")[:2]), [])


def walk(
    *lines: str, target: index_pages.Target = LINUX, as_of: str = "", **options: object
) -> Walk:
    index = Index([Place(url="https://index.example/simple")], page, stated, as_of)
    walk = Walk(index, target, options.pop("offered", {}), **options)  # type: ignore[arg-type]
    walk.follow((Requirement(line), f"requirements.txt:{n}") for n, line in enumerate(lines, 1))
    return walk


def blocked(found: Walk) -> dict[str, tuple[str, str]]:
    return {b.name: (b.kind, b.version) for b in found.blockers.values()}


def chosen(found: Walk) -> dict[str, str]:
    return {name: release.version for name, release in found.chosen.items()}


def test_everything_that_is_in_the_way_is_found_at_once() -> None:
    found = walk("app[fast]", "binary", "nowhere", "low>=2", "low<2", "yanked")
    assert chosen(found) == {"app": "2.0"}
    assert blocked(found) == {
        "binary": ("wheel", "1.0"),
        "nowhere": ("absent", ""),
        "yanked": ("absent", ""),
        "low": ("conflict", "3.0rc1"),
        "old": ("source", "1.0"),
        "compiled": ("source", "1.0"),
    }
    assert found.blockers["compiled"].pythons == ("3.10",)
    assert found.blockers["old"].needs == (("app 2.0", ""),)
    text = explained([*found.blockers.values()], LINUX)
    assert text.startswith("linux/amd64 with Python 3.11: 6 packages stand in the way: • ")
    assert text.endswith("build_from_source: [compiled, old]")
    assert "low: no release is what all require: requirements.txt:4 needs >=2" in text
    assert "nowhere (requirements.txt:3): no index has it. Correct" in text
    blocker = Blocker(name="nunpy", kind="absent", version="", needs=())
    assert "no index has it; perhaps numpy is meant." in explained([blocker], LINUX)


@pytest.mark.parametrize(
    "failure",
    [refused(503), refused(403), requests.ConnectionError("reset"), requests.Timeout("late")],
    ids=lambda failure: type(failure).__name__,
)
def test_an_index_that_fails_midway_makes_no_package_absent(failure: Exception) -> None:
    """Neither one that others lack nor one of which another index has the source alone."""

    def read(url: str) -> bytes:
        if "second" in url and "low" not in url:
            raise failure
        return page(url)

    places = [Place(url=f"https://{host}.example/simple") for host in ("first", "second")]
    index = Index(places, read, stated)
    assert index.releases("low")
    found = Walk(index, LINUX, {})
    found.follow((Requirement(name), "a.txt:1") for name in ("low", "nowhere", "old", "app<2"))
    assert blocked(found) == {"nowhere": ("unknown", ""), "old": ("unknown", "")}
    assert chosen(found) == {"low": "1.0", "app": "1.0"}
    text = explained([*found.blockers.values()], LINUX)
    assert "nowhere (a.txt:1): not known, since an index fails (second.example: " in text
    assert "exclude" not in text
    assert "build_from_source" not in text


def test_the_newest_release_is_taken_that_everything_admits() -> None:
    assert chosen(walk("low")) == {"low": "2.0"}
    assert chosen(walk("low>=3.0rc1")) == {"low": "3.0rc1"}
    assert chosen(walk("app<2", "low")) == {"app": "1.0", "low": "1.0"}
    assert chosen(walk("low", "app<2")) == {"app": "1.0", "low": "1.0"}, "chosen again"
    assert blocked(walk("low>99")) == {"low": ("release", "3.0rc1")}
    assert blocked(walk("binary", target=("linux/amd64", "3.10"))) == {}


def test_what_a_release_disagrees_about_is_named_and_not_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other release of `app` is left to be chosen, and the one that there is exists."""
    found = walk("app==1.0", "tool")
    assert blocked(found) == {"tool": ("absent", "")}
    monkeypatch.setitem(PAGES, "tool", {f"tool-1.0-{ANY}.whl": "2020-01-01"})
    monkeypatch.setitem(REQUIRES, "tool-1.0", ["low>=2"])
    found = walk("app==1.0", "tool")
    assert blocked(found) == {"low": ("conflict", "3.0rc1")}
    text = explained([*found.blockers.values()], LINUX)
    assert "app 1.0 needs <2, tool 1.0 needs >=2" in text

    # So it is if an older release is left that has no wheel.
    monkeypatch.setitem(PAGES, "app", {f"app-0.1-{PYTHON_310}.whl": "", **PAGES["app"]})
    assert blocked(walk("app<2", "tool")) == {"low": ("conflict", "3.0rc1")}


def test_a_day_overrides_exclusions_and_constraints_are_those_of_the_project() -> None:
    assert chosen(walk("app", as_of="2022-01-01")) == {"app": "1.0", "low": "1.0"}
    assert blocked(walk("app", excluded=["old"])) == {}
    assert chosen(walk("app", excluded=["old"], overrides=["low==1.0"]))["low"] == "1.0"
    assert chosen(walk("low", constraints=["low<2", "low<1; sys_platform == 'darwin'"])) == {
        "low": "1.0"
    }


def test_what_is_offered_is_added_and_what_is_named_comes_from_there_alone() -> None:
    offer = Offer(
        distribution="old", version="1.0", file=f"old-1.0-{ANY}.whl", sha256="", source="built",
        provenance="read", by="", requires_dist=("low<2",),
    )  # fmt: skip
    offered = index_pages.of_offers([offer])
    assert chosen(walk("app", offered=offered)) == {"app": "2.0", "old": "1.0", "low": "1.0"}
    assert blocked(walk("app", named={"old"})) == {"old": ("absent", "")}


def test_requirements_that_always_ask_for_another_version_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(REQUIRES, "low-2.0", ["app<2"])
    monkeypatch.setitem(REQUIRES, "low-1.0", ["app>=2"])
    assert walk("app", "low", excluded=["old"]).chosen


def test_what_a_release_requires_is_known_from_a_wheel_for_another_platform() -> None:
    """A source that would have to be built for that needs no build."""
    index = Index([Place(url="https://index.example/simple")], page, lambda _: ["six"])
    assert index.required_elsewhere("compiled", "1.0") == ["six"]
    assert index.required_elsewhere("old", "1.0") is None
    assert index.required_elsewhere("app", "1.0") is None, "pure Python is built once for all"
    assert index.required_elsewhere("nowhere", "1.0") is None
    unreadable = Index([Place(url="https://index.example/simple")], page, lambda _: None)
    assert unreadable.required_elsewhere("compiled", "1.0") is None


def test_pages_of_this_machine_are_folders(tmp_path: Path) -> None:
    """A folder for each package, with its page; or all files in one, as find-links has it."""
    name = f"low-1.0-{ANY}.whl"
    (tmp_path / "low").mkdir()
    (tmp_path / "low" / "index.html").write_text(f'<a href="{name}">{name}</a>')
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / f"app-3.0-{ANY}.whl").touch()
    places = [Place(url=tmp_path.as_uri()), Place(url=str(tmp_path / "flat"), flat=True)]
    index = Index(places, upstream.page, stated)
    versions = {of: [*map(str, index.releases(of))] for of in ("low", "app", "gone")}
    assert versions == {"low": ["1.0"], "app": ["3.0"], "gone": []}
