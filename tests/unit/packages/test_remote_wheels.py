"""What a wheel installs is read from its server in parts, and never raises."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core import http
from envbuilder.core.settings import Configuration, Settings
from envbuilder.packages import remote_wheels
from envbuilder.packages.python import upstream, wheel_conflicts
from envbuilder.packages.python.uv import Found
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support import index_server, make_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from envbuilder.packages.python.static_index import Offer

LOGIN = "me:p4ss"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return Settings(
        project=None, config_dir=tmp_path, cache_dir=tmp_path / "cache", data_dir=tmp_path,
        configuration=Configuration(),
    )  # fmt: skip


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
        self.offers, self.requests, self.url = offers, requests, url

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
        return remote_wheels.contents(self.found(), "3.11", own, variables)


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
    assert all(" bytes=" in request for request in served.requests)
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
    assert remote_wheels.contents(unreachable, "3.11", own, {}) == {}


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


def test_nobody_listens(own: Settings, offers: list[Offer]) -> None:
    assert Served(offers, "http://127.0.0.1:9/simple", []).contents(own) == {}


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
    assert remote_wheels.contents(wheels, "3.11", own, {}) == whole(offers, tmp_path)
