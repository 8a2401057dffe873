"""Wheels that install different bytes at one path are refused, read locally or by ranges."""

from __future__ import annotations

import csv
import hashlib
import random
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import http
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings
from envbuilder.packages import upstream
from envbuilder.packages.python import wheel_conflicts
from envbuilder.packages.python.uv import Found, Offer
from envbuilder.packages.python.wheel_conflicts import clash, contents, require_compatible
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support import index_server, make_wheels
from tests.support.packed import zipped

SITE = "lib/python3.11/site-packages"
SHARED = "shared/__init__.py"


def named(name: str, sha256: str = "0" * 64) -> File:
    return File(
        kind="wheel", name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl", sha256=sha256,
        size=None, source="default", provenance="read", by="test",
    )  # fmt: skip


class Wheels:
    """A store of small wheels, and what a lock says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store(folder / "store")
        self.files: list[File] = []

    def add(self, name: str, files: Mapping[str, bytes], scripts: str = "") -> File:
        made = make_wheels.write(self.folder, name, files, scripts)
        return self.keep(name, made.read_bytes())

    def keep(self, name: str, data: bytes) -> File:
        file = named(name, hashlib.sha256(data).hexdigest())
        path = self.store.path(file.sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.files.append(file)
        return file

    def check(self) -> None:
        require_compatible(self.files, "3.11", self.store)

    def refused(self) -> str:
        with pytest.raises(InvalidError) as caught:
            self.check()
        assert caught.value.exit_code == 2
        return f"{caught.value.message} {caught.value.hint}"


@pytest.fixture
def wheels(tmp_path: Path) -> Wheels:
    return Wheels(tmp_path)


# ---- two wheels


def test_other_bytes_in_one_place_are_refused(wheels: Wheels) -> None:
    wheels.add("left", {SHARED: b"left", "left.py": b""})
    wheels.add("between", {"between.py": b""})
    wheels.add("right", {SHARED: b"right", "right.py": b""})
    told = wheels.refused()
    assert f"{SITE}/{SHARED}" in told
    assert "left-1.0-py3-none-any.whl and right-1.0-py3-none-any.whl" in told
    assert (
        "(exclude: [left] or [right]), replace one by the other (overrides: {left: right})" in told
    )
    assert "envbuilder lock" in told
    assert "between" not in told


LEFT = {"left-1.0.data/headers/api.h": b"left", "tool": b"left", "x.data/y/z": b"l"}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({SHARED: b"", "left.py": b""}, {SHARED: b"", "right.py": b""}),
        (LEFT, {"right-1.0.data/headers/api.h": b"r", "right-1.0.data/scripts/tool": b"r"}),
    ],
    ids=["the same bytes twice", "apart"],
)
def test_what_is_no_conflict(
    wheels: Wheels, left: dict[str, bytes], right: dict[str, bytes]
) -> None:
    wheels.add("left", left)
    wheels.add("right", right)
    wheels.check()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("left-1.0.data/purelib/shared.py", "shared.py"),
        ("left-1.0.data/platlib/shared.py", "right-1.0.data/purelib/shared.py"),
        ("left-1.0.data/scripts/tool", "right-1.0.data/scripts/tool"),
        ("left-1.0.data/scripts/tool", "right-1.0.data/data/bin/tool"),
        (f"left-1.0.data/data/{SITE}/shared.py", "shared.py"),
    ],
)
def test_places_are_compared_and_not_names(wheels: Wheels, left: str, right: str) -> None:
    wheels.add("left", {left: b"one"})
    wheels.add("right", {right: b"two"})
    wheels.refused()
    wheels.files.pop()
    wheels.add("right", {right: b"one"})
    wheels.check()


@pytest.mark.parametrize(
    ("files", "scripts"),
    [({}, "tool = right.cli:main"), ({"right-1.0.data/scripts/tool": b"#!python\n"}, "")],
)
def test_scripts_that_an_installer_writes_are_compared(
    wheels: Wheels, files: dict[str, bytes], scripts: str
) -> None:
    wheels.add("left", {}, "tool = left.cli:main")
    wheels.add("right", files, scripts)
    assert "bin/tool" in wheels.refused()


def test_one_function_however_it_is_written_is_one_script(wheels: Wheels) -> None:
    wheels.add("left", {}, "tool = shared.cli:main\nother = left:main")
    wheels.add("right", {}, "tool=shared.cli : main [extra]\nOther = right:main")
    wheels.check()


# ---- what a RECORD may be


@pytest.mark.parametrize(
    "record",
    [
        f"{SHARED},,0\nleft-1.0.dist-info/RECORD,,\n",
        "",
        f"{SHARED}\n",
        "other.py,sha256=x,0\n",  # silence is like no hash
    ],
)
def test_a_shared_file_without_a_hash_is_refused(wheels: Wheels, record: str) -> None:
    """Nobody says that it is the same: it matters only where two wheels carry it."""
    wheels.keep("left", archive(record, SHARED, "alone.py"))
    wheels.check()
    wheels.add("right", {SHARED: b""})
    assert SHARED in wheels.refused()
    assert clash({named("a"): {SHARED: ""}, named("b"): {SHARED: ""}}) is not None


def archive(record: str | bytes, *members: str, **infos: str) -> bytes:
    """A wheel `left` with this RECORD, empty members, and further texts beside RECORD."""
    beside = {**infos, "RECORD": record}
    files = {f"left-1.0.dist-info/{name}": text for name, text in beside.items()}
    return zipped({**dict.fromkeys(members, b""), **files}, zipfile.ZIP_STORED)


BROKEN_MEMBER = archive("x" * 99).replace(b"x" * 99, b"y" * 99)
POINTS = {"entry_points.txt": "[console_scripts]\n../tool = a:b\n"}


@pytest.mark.parametrize(
    "data",
    [
        b"no archive",
        zipped({"left.py": b""}),
        archive("", "other-1.0.dist-info/RECORD"),
        archive("../left.py,sha256=x,0\n"),
        archive("", "../../bin/python"),
        archive("", "/etc/passwd"),
        archive("", "left-1.0.data/nowhere/x"),
        archive(b"\xff\xfe"),
        archive("a" * (csv.field_size_limit() + 1)),
        archive("", **POINTS),
        archive("", **{"entry_points.txt": "[console_scripts]\ntool\n"}),
        BROKEN_MEMBER,
    ],
    # Archives hold the time, and workers must collect the same names.
    ids=lambda data: f"{len(data)} bytes",
)
def test_a_wheel_that_cannot_be_used_is_named(wheels: Wheels, data: bytes) -> None:
    wheels.add("right", {"right.py": b""})
    wheels.keep("left", data)
    told = wheels.refused()
    assert told.startswith("left-1.0-py3-none-any.whl: ")
    assert "pin another version of left" in told


def test_a_huge_record_is_not_read(wheels: Wheels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_conflicts, "RECORD_LIMIT", 1 << 20)
    wheels.keep("left", archive("x" * ((1 << 20) + 1)))
    assert "larger than 1 MiB" in wheels.refused()


def test_damage_in_the_store_is_damage_and_no_bad_wheel(wheels: Wheels) -> None:
    file = wheels.add("left", {"left.py": b""})
    path = wheels.store.path(file.sha256)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BuildError, match="damaged in the store"):
        wheels.check()
    assert not path.exists()


# ---- properties


@given(st.lists(st.text(), max_size=6), st.text(), st.text())
def test_any_text_is_understood_or_refused(members: list[str], record: str, points: str) -> None:
    import configparser

    try:
        found = contents("w-1", "3.11", members, record, points)
    except (ValueError, csv.Error, configparser.Error):
        return
    root = Path("/prefix")
    for place in found:
        inside = Path(f"{root}/{place}")
        assert ".." not in inside.parts
        assert inside.is_relative_to(root)


def test_a_line_that_takes_quadratic_time_is_refused(wheels: Wheels) -> None:
    wheels.add("left", {}, "a" + " " * 200_000 + "b")
    assert "more than 1000 characters" in wheels.refused()


def test_what_is_wrong_with_many_lines_is_said_briefly(wheels: Wheels) -> None:
    wheels.add("left", {}, "tool\n" * 2000)
    assert len(wheels.refused()) < 1250


LOGIN = "me:p4ss"


@pytest.fixture
def own(found: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return found


@pytest.fixture
def offers(tmp_path: Path) -> list[Offer]:
    """A small wheel, one whose files are large, and one whose directory is longer than its end."""
    noise = random.Random(1).randbytes
    paths = [
        make_wheels.write(tmp_path, "small", {"small.py": b"1"}, "tool = small:main"),
        make_wheels.write(tmp_path, "large", {"large.bin": noise(3 << 20)}),
        make_wheels.write(tmp_path, "many", {f"many/{n:05}.py": noise(8) for n in range(3000)}),
    ]
    return [upstream.read_wheel(path) for path in paths]


class Served:
    """Wheels on a server, and what it was asked for."""

    def __init__(self, offers: list[Offer], url: str, requests: list[str]) -> None:
        self.offers = offers
        self.requests = requests
        self.url = url

    def found(self) -> list[Found]:
        root = self.url.removesuffix("/simple")
        return [
            Found(
                file=File(
                    kind="wheel", name=o.distribution, version=o.version, file=o.file,
                    sha256=o.sha256, size=None, source="default", provenance="read", by="test",
                ),
                url=f"{root}/files/{o.file}",
            )
            for o in self.offers
        ]  # fmt: skip

    def contents(self, own: Settings, variables: Mapping[str, str] = {}) -> Any:
        return wheel_conflicts.remote_contents(self.found(), "3.11", own, variables)


@pytest.fixture
def served(offers: list[Offer]) -> Iterator[Served]:
    requests: list[str] = []
    with index_server.serve(offers, requests=requests) as url:
        yield Served(offers, url, requests)


def whole(offers: list[Offer], path: Path) -> dict[str, dict[str, str]]:
    return {o.sha256: wheel_conflicts.opened(path / o.file, "3.11") for o in offers}


def test_parts_tell_what_the_whole_wheel_tells(
    served: Served, own: Settings, tmp_path: Path
) -> None:
    assert served.contents(own) == whole(served.offers, tmp_path)
    assert served.requests
    for request in served.requests:
        assert " bytes=" in request
    assert len([r for r in served.requests if "large" in r]) == 1


def test_nothing_is_asked_twice_and_the_store_does_not_matter(
    served: Served, own: Settings, tmp_path: Path
) -> None:
    first = served.contents(own)
    served.requests.clear()
    assert served.contents(own) == first
    assert not served.requests
    unreachable = [Found(file=w.file, url="") for w in served.found()]
    for wheel in served.found():
        store = Store.of(own)
        store.take(wheel.file.sha256, [(tmp_path / wheel.file.file).read_bytes()])
    assert wheel_conflicts.remote_contents(unreachable, "3.11", own, {}) == {}


def test_a_server_without_ranges_sends_the_whole_if_it_is_not_too_long(
    served: Served, own: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_server, "asked", lambda _, size: (0, size))
    limit = (tmp_path / served.offers[0].file).stat().st_size
    read = http.read
    monkeypatch.setattr(http, "read", lambda response: read(response, limit))
    small = served.offers[:1]
    assert served.contents(own) == whole(small, tmp_path)


@pytest.mark.parametrize("part", [(0, 70_000), (5, 70_000)])
def test_a_server_that_sends_other_parts_tells_nothing_wrong(
    part: tuple[int, int], served: Served, own: Settings, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(index_server, "asked", lambda _, size: (part[0], min(part[1], size)))
    correct = whole(served.offers, tmp_path)
    assert served.contents(own).items() <= correct.items()
    assert served.offers[1].sha256 not in served.contents(own)


def test_a_wheel_that_is_gone_or_damaged_is_left_out(
    served: Served, own: Settings, tmp_path: Path
) -> None:
    (tmp_path / served.offers[0].file).unlink()
    (tmp_path / served.offers[1].file).write_bytes(b"no wheel")
    assert served.contents(own).keys() == {served.offers[2].sha256}


def test_the_login_of_the_index_is_used(offers: list[Offer], own: Settings, tmp_path: Path) -> None:
    with index_server.serve(offers, LOGIN) as url:
        served = Served(offers, url, [])
        assert served.contents(own) == {}
        variables = {"UV_DEFAULT_INDEX": url.replace("://", f"://{LOGIN}@")}
        assert served.contents(own, variables) == whole(offers, tmp_path)


def test_a_wheel_in_a_folder_is_read_there(
    offers: list[Offer], own: Settings, tmp_path: Path
) -> None:
    wheels = [
        Found(file=w.file, url=(tmp_path / w.file.file).as_uri())
        for w in Served(offers, "", []).found()
    ]
    assert wheel_conflicts.remote_contents(wheels, "3.11", own, {}) == whole(offers, tmp_path)
