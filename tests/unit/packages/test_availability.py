"""What stands in the way of a target, by the pages of an index alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from pathlib import Path

import pytest
import requests
from msgspec.structs import replace
from packaging.requirements import Requirement

from envbuilder.core.settings import Settings
from envbuilder.locks.blockers import Diagnosis, explained
from envbuilder.packages import upstream
from envbuilder.packages.availability import Blocker, Walk
from envbuilder.packages.fetch import Place
from envbuilder.packages.python.uv import Found, Offer
from envbuilder.packages.sources import source_locker
from envbuilder.packages.upstream import Listed
from envbuilder.profiles.lock import File
from tests.support.shipped import shipped_profile
from tests.support.user_index import refused

CPU = shipped_profile("cpu")
WHEEL = File(
    kind="wheel", name="x", version="1", file="x-1-py3-none-any.whl", sha256="a" * 64, size=1,
    source="default", provenance="read", by="a test",
)  # fmt: skip
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
    # Of these, only what is too old has a wheel.
    "moved": {f"moved-1.9-{ANY}.whl": "2020-01-01", "moved-2.0.tar.gz": "", "moved-3.1.tar.gz": ""},
    "early": {f"early-0.3.dev5-{ANY}.whl": "2020-01-01", "early-0.3.tar.gz": "2021-01-01"},
    # And here, only what is too old requires nothing that has no wheel.
    "hydra": {f"hydra-{v}-{ANY}.whl": "2020-01-01" for v in ("0.9", "1.3")},
    # Of these it is not too old.
    "minor": {f"minor-1.9-{ANY}.whl": "2020-01-01", "minor-1.10.tar.gz": "2024-01-01"},
    "native": {
        f"native-1.9-{ANY}.whl": "2020-01-01",
        "native-1.10-cp38-cp38-manylinux2014_x86_64.whl": "2021-01-01",
        "native-2.0-cp311-cp311-macosx_11_0_arm64.whl": "2024-01-01",
    },
    "later": {f"later-{v}-{ANY}.whl": "" for v in ("1.0", "2.0")} | {"later-3.0.tar.gz": ""},
    "wheels": {
        "wheels-2024.1-cp311-cp311-manylinux2014_x86_64.whl": "2024-01-01",
        "wheels-2026.1-cp312-cp312-manylinux2014_x86_64.whl": "2026-01-01",
    },
    "yanked": {f"yanked-1.0-{ANY}.whl": "2020-01-01", f"yanked-0.9-{PYTHON_310}.whl": ""},
}
REQUIRES = {
    "hydra-1.3": ["old"],
    "app-1.0": ["low<2"],
    "app-2.0": [
        "old", "low>=1; python_version >= '3.8'",
        "compiled; extra == 'fast'", "gone; os_name == 'nt'",
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
            "requires-python": ">=3.12" if "-9-" in file else "",
            "yanked": "broken" if name == "yanked" else False,
        }
        for file, day in PAGES[name].items()
    ]
    return json.dumps({"files": files}).encode()


def stated(wheel: Listed) -> list[str]:
    return REQUIRES.get("-".join(wheel.file.split("-")[:2]), [])


INDEX = Place(url="https://index.example/simple")


def walk(
    *lines: str,
    target: upstream.Target = LINUX,
    as_of: str = "",
    constraints: dict[str, str] | None = None,
    **options: object,
) -> Walk:
    index = upstream.Index([INDEX], page, stated, as_of)
    offered = options.pop("offered", {})
    limits = ((Requirement(line), where) for line, where in (constraints or {}).items())
    walk = Walk(index, target, offered, constraints=limits, **options)  # type: ignore[arg-type]
    walk.follow((Requirement(line), f"requirements.txt:{n}") for n, line in enumerate(lines, 1))
    return walk


def open_index(monkeypatch: pytest.MonkeyPatch, read: Callable[[str], bytes] = page) -> None:
    index = upstream.Index([INDEX], read, stated)
    monkeypatch.setattr(upstream, "opened", lambda *_: nullcontext(index))


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
    text = str(explained([*found.blockers.values()], LINUX))
    assert 'nor a source; it has one for Python 3.10. To go on: python: "3.10"' in text
    assert text.startswith("6 packages stand in the way: • ")
    assert text.endswith("build_from_source: [compiled, old]")
    assert "low: no release is what all require: requirements.txt:4 needs >=2" in text
    assert "nowhere (requirements.txt:3): no index has it. Correct" in text
    assert {b.later for b in found.blockers.values()} == {""}
    mac = ("macos/arm64", "3.11")
    found = walk("native==1.10", "moved==2", target=mac)
    assert found.blockers["moved"].later == "", "it has no wheel for anything"
    assert found.blockers["native"].later == "2.0"
    told = str(explained([found.blockers["native"]], mac))
    assert told.endswith("""overrides: {native: "native==2.0; sys_platform == 'darwin'"}""")
    blocker = Blocker(name="nunpy", kind="absent", version="", needs=())
    assert "no index has it; perhaps numpy is meant." in str(explained([blocker], LINUX))
    known = str(explained([replace(blocker, name="tbb")], LINUX))
    assert "tbb (): no index has it. Name an index that has it, or exclude: [tbb]" in known


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
    index = upstream.Index(places, read, stated)
    assert index.releases("low")
    found = Walk(index, LINUX, {})
    found.follow((Requirement(name), "a.txt:1") for name in ("low", "nowhere", "old", "app<2"))
    assert blocked(found) == {"nowhere": ("unknown", ""), "old": ("unknown", "")}
    assert chosen(found) == {"low": "1.0", "app": "1.0"}
    text = str(explained([*found.blockers.values()], LINUX))
    assert "nowhere (a.txt:1): not known, since an index fails (second.example: " in text
    assert "exclude" not in text
    assert "build_from_source" not in text


def test_the_newest_release_is_taken_that_everything_admits() -> None:
    assert chosen(walk("low")) == {"low": "2.0"}
    assert chosen(walk("low>=3.0rc1")) == {"low": "3.0rc1"}
    assert chosen(walk("app<2", "low")) == {"app": "1.0", "low": "1.0"}
    assert chosen(walk("yanked==1.0")) == {"yanked": "1.0"}
    assert blocked(walk("yanked==1.*")) == {"yanked": ("absent", "")}
    locked = walk("yanked", constraints={"yanked==1.0": "uv.lock"})
    assert chosen(locked) == {"yanked": "1.0"}, "it was yanked after it was locked"
    found = walk("low>99")
    assert blocked(found) == {"low": ("release", "2.0")}
    text = str(explained([*found.blockers.values()], LINUX))
    assert text.endswith('the nearest is low 2.0. To take that: overrides: {low: "low==2.0"}')
    assert blocked(walk("low==1.5.1")) == {"low": ("release", "2.0")}, "the next one, not 3.0rc1"
    assert blocked(walk("binary", target=("linux/amd64", "3.10"))) == {}


@pytest.mark.parametrize(
    ("limits", "of_limits", "edit"),
    [
        (
            {"low<2": "limits.txt:1", "low>2": "limits.txt:2"},
            "limits.txt:1 needs <2, limits.txt:2 needs >2",
            'overrides: {low: "low>=…"}',
        ),
        (
            {"low<1": "profile cpu"},
            "profile cpu needs <1",
            "another framework_version, or exclude: [low]",
        ),
        ({"low<1": "limits.txt:1"}, "limits.txt:1 needs <1", 'overrides: {low: "low==2.0"}'),
        (
            {"low==3.0rc1": "profile cpu", "low<3": "a.txt:1"},
            "profile cpu needs ==3.0rc1, a.txt:1 needs <3",
            'overrides: {low: "low==3.0rc1"}',
        ),
    ],
    ids=["constraints", "framework", "constraint", "both"],
)
def test_who_limits_a_package_is_told_and_what_holds_against_it(
    limits: dict[str, str], of_limits: str, edit: str
) -> None:
    found = walk("low>=1", constraints=limits)
    text = str(explained([*found.blockers.values()], LINUX))
    assert f"requirements.txt:1 needs >=1, {of_limits}" in text
    assert text.endswith(f": {edit}")


def test_all_that_ask_too_much_of_one_package_are_taken_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("one", "two", "three"):
        files = {f"{name}-{v}-{ANY}.whl": "2020-01-01" for v in ("1.0", "2.0")}
        monkeypatch.setitem(PAGES, name, files)
        monkeypatch.setitem(REQUIRES, f"{name}-2.0", ["low>=2"])
    found = walk("one", "two", "low<2", "three")
    assert chosen(found) == dict.fromkeys(("one", "two", "low", "three"), "1.0")
    monkeypatch.setitem(PAGES, "two", {"two-1.0.tar.gz": "", f"two-2.0-{ANY}.whl": "2020-01-01"})
    assert blocked(walk("one", "two", "low==1.0")) == {"two": ("source", "1.0")}


def test_a_folder_of_wheels_does_not_say_that_a_newer_release_is_for_this_python(
    tmp_path: Path,
) -> None:
    """It may have what an index lists for later Pythons, or wheels for them alone."""
    for file in (f"low-3.0-{ANY}.whl", "yanked-2.0-cp312-cp312-manylinux2014_x86_64.whl"):
        (tmp_path / file).touch()

    def read(url: str) -> bytes:
        answer = json.loads(page(url))
        later = {"filename": f"low-3.0-{ANY}.whl", "url": "x", "requires-python": ">=3.12"}
        return json.dumps({"files": [*answer["files"], later]}).encode()

    places = [INDEX, Place(url=str(tmp_path), flat=True)]
    found = Walk(upstream.Index(places, read, stated), LINUX, {})
    found.follow((Requirement(line), "x") for line in ("low", "yanked==1.0"))
    assert chosen(found) == {"low": "2.0", "yanked": "1.0"}
    assert blocked(found) == {}


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
    text = str(explained([*found.blockers.values()], LINUX))
    assert "app 1.0 needs <2, tool 1.0 needs >=2" in text
    assert 'overrides: {low: "low>=…"}' in text
    text = str(explained([*walk("low==1.0", "low>1").blockers.values()], LINUX))
    assert 'overrides: {low: "low==1.0"}' in text

    # So it is if an older release is left that has no wheel.
    monkeypatch.setitem(PAGES, "app", {f"app-0.1-{PYTHON_310}.whl": "", **PAGES["app"]})
    assert blocked(walk("app<2", "tool")) == {"low": ("conflict", "3.0rc1")}


def test_a_release_that_needs_one_for_another_python_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        PAGES, "tool", {f"tool-{v}-{ANY}.whl": "2020-01-01" for v in ("1.0", "2.0")}
    )
    # For Python 3.12.
    monkeypatch.setitem(PAGES, "low", {f"low-4.0-9-{ANY}.whl": "2020-01-01", **PAGES["low"]})
    monkeypatch.setitem(REQUIRES, "tool-2.0", ["low>=4"])
    assert chosen(walk("tool", "low")) == {"tool": "1.0", "low": "2.0"}
    assert blocked(walk("tool==2.0")) == {"low": ("wheel", "4.0")}
    assert blocked(walk("low==5")) == {"low": ("release", "2.0")}


def test_an_older_source_goes_with_a_pin_that_newer_releases_contradict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {f"tool-2.0-{ANY}.whl": "2022-01-01", "tool-1.0.tar.gz": "2020-01-01"}
    monkeypatch.setitem(PAGES, "tool", files)
    monkeypatch.setitem(REQUIRES, "tool-2.0", ["low>=2"])
    assert blocked(walk("tool", "low==1.0")) == {"tool": ("source", "1.0")}
    assert blocked(walk("tool>1", "low==1.0")) == {"low": ("conflict", "3.0rc1")}
    assert blocked(walk("tool", "low<2")) == {"low": ("conflict", "3.0rc1")}, "no more is said"


def test_what_is_older_for_a_release_that_was_left_out_later_stands_in_no_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = ("1.0", "2.0")
    for name in ("picky", "shared", "wide"):
        monkeypatch.setitem(PAGES, name, {f"{name}-{v}-{ANY}.whl": "2020-01-01" for v in both})
    monkeypatch.setitem(REQUIRES, "picky-2.0", ["shared<2", "wide>=2"])
    found = walk("picky", "shared", "wide<2")
    assert chosen(found) == {"picky": "1.0", "shared": "1.0", "wide": "1.0"}
    assert blocked(found) == found.old_choices == {}


def test_a_conflict_that_several_are_left_out_over_is_told_once() -> None:
    first, second = (
        Blocker(name="low", kind="conflict", version="3.0", needs=((who, ">=2"),))
        for who in ("app 1.0", "tool 1.0")
    )
    assert str(explained([first, second], LINUX)).count("low: no release") == 1


def test_a_day_overrides_exclusions_and_constraints_are_those_of_the_project() -> None:
    assert chosen(walk("app", as_of="2022-01-01")) == {"app": "1.0", "low": "1.0"}
    late = walk("app", "later", as_of="2019-12-01")
    assert blocked(late) == {"app": ("absent", ""), "later": ("absent", "")}
    text = str(explained([*late.blockers.values()], LINUX))
    assert (
        "app (requirements.txt:1): no release of 2019-12-01 or before is known; the first" in text
    )
    assert "is of 2021-01-01. To go on: a later as_of, or exclude: [app]" in text
    assert "later (requirements.txt:2): no release of 2019-12-01 or before is known. To" in text
    folder = upstream.Index([Place(url="/later", flat=True)], page, stated, "2019-12-01")
    assert [*map(str, folder.releases("later"))] == ["1.0", "2.0", "3.0"], "as uv takes them"
    assert blocked(walk("app", excluded=["old"])) == {}
    assert chosen(walk("app", excluded=["old"], overrides=["low==1.0"]))["low"] == "1.0"
    limits = ("low<2", "low<1; sys_platform == 'darwin'")
    assert chosen(walk("low", constraints=dict.fromkeys(limits, "a.txt:1"))) == {"low": "1.0"}


def test_what_is_offered_is_added_and_what_is_named_comes_from_there_alone() -> None:
    offer = Offer(
        distribution="old", version="1.0", file=f"old-1.0-{ANY}.whl", sha256="", source="built",
        provenance="read", by="", requires_dist=("low<2",),
    )  # fmt: skip
    offered = upstream.of_offers([offer])
    assert chosen(walk("app", offered=offered)) == {"app": "2.0", "old": "1.0", "low": "1.0"}
    assert blocked(walk("app", named={"old"})) == {"old": ("unknown", "")}
    asks_too_much = walk("old==1.0", "low>=2", named={"old"}, offered=offered)
    assert blocked(asks_too_much) == {"low": ("conflict", "3.0rc1")}


def test_requirements_that_always_ask_for_another_version_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(REQUIRES, "low-2.0", ["app<2"])
    monkeypatch.setitem(REQUIRES, "low-1.0", ["app>=2"])
    assert walk("app", "low", excluded=["old"]).chosen


def test_what_a_release_requires_is_known_from_a_wheel_for_another_platform() -> None:
    """A source that would have to be built for that needs no build."""
    index = upstream.Index([INDEX], page, lambda _: ["six"])
    assert index.required_elsewhere("compiled", "1.0") == ["six"]
    assert index.required_elsewhere("old", "1.0") is None
    assert index.required_elsewhere("app", "1.0") is None, "pure Python is built once for all"
    assert index.required_elsewhere("nowhere", "1.0") is None
    assert index.required_elsewhere("yanked", "0.9") == ["six"]
    unreadable = upstream.Index([INDEX], page, lambda _: None)
    assert unreadable.required_elsewhere("compiled", "1.0") is None


@pytest.mark.parametrize(
    ("line", "blocker", "instead"),
    [
        ("moved", ("source", "3.1"), "1.9"),
        ("moved<3", ("source", "2.0"), "1.9"),
        ("early", ("source", "0.3"), "0.3.dev5"),
        ("early>=0.3.dev1", None, ""),
        ("minor", None, ""),
        ("later", ("source", "3.0"), "2.0"),
        ("wheels", None, ""),
        ("native", None, ""),  # there is nothing to build
    ],
)
def test_what_is_too_old_does_not_take_the_place_of_what_has_no_wheel(
    line: str, blocker: tuple[str, str] | None, instead: str
) -> None:
    found = walk(line)
    name = Requirement(line).name
    assert blocked(found) == ({name: blocker} if blocker else {})
    if blocker:
        text = str(explained([*found.blockers.values()], LINUX))
        assert f"its source; {name} {instead} would be taken instead" in text
        assert f"build_from_source: [{name}]" in text
        assert text.endswith(f"require it: {name}=={instead}")


def test_only_pages_of_old_wheels_are_read(
    monkeypatch: pytest.MonkeyPatch, found: Settings
) -> None:
    asked = list[str]()

    def read(url: str) -> bytes:
        asked.append(url.rstrip("/").rpartition("/")[2])
        return page(url)

    open_index(monkeypatch, read)
    monkeypatch.setattr(source_locker, "requirements", lambda *_: ())

    def passed_over(*wheels: tuple[str, str, str], **options: bool) -> dict[str, str]:
        with Diagnosis(found, **options) as diagnosis:
            profile = replace(CPU, requirements=tuple(name for name, *_ in wheels), release=None)
            every = [
                Found(file=replace(WHEEL, name=name, version=version), url="", uploaded=day)
                for name, version, day in wheels
            ]
            return {
                b.name: " ".join(b.instead) for b in diagnosis.passed_over(profile, LINUX, every)
            }

    today = date.today().isoformat()
    assert passed_over(("moved", "1.9", today), ("low", "2.0", today)) == {}
    assert asked == []
    every = ("moved", "1.9", "2020-01-01"), ("early", "0.3.dev5", today), ("app", "2.0", today)
    assert passed_over(*every) == {"moved": "moved 1.9", "early": "early 0.3.dev5"}
    assert passed_over(("hydra", "0.9", "2020-01-01")) == {"old": "hydra 0.9"}
    assert passed_over(("native", "1.9", "2020-01-01")) == {"native": "native 1.9"}
    assert passed_over(("hydra", "0.9", "2020-01-01"), ("hydra<1", "", today)) == {}


def test_what_goes_with_a_release_is_the_profile_s_limit_also_if_a_line_says_the_same(
    monkeypatch: pytest.MonkeyPatch, found: Settings
) -> None:
    monkeypatch.setitem(PAGES, "torchvision", {f"torchvision-0.28.0-{ANY}.whl": ""})
    open_index(monkeypatch)
    line = "torchvision==0.20.0"
    profile = replace(CPU, release="2.5.0", requirements=(line,))
    with Diagnosis(found) as diagnosis:
        blockers = diagnosis.blockers(profile, LINUX, places={line: "a.yaml:3"})
    text = str(explained(blockers, LINUX))
    assert "(a.yaml:3 needs ==0.20.0, profile cpu needs ==0.20.0)" in text
    assert text.endswith("another framework_version, or exclude: [torchvision]")
