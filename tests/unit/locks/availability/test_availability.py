"""What is left of a lock's pins upstream: fine, vanished, changed, or not known."""

from __future__ import annotations

import hashlib
import json
import signal
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder import cli
from envbuilder.containers.engine import connection
from envbuilder.containers.registry import connection as registry_connection
from envbuilder.containers.registry.responses import BrokenOffError
from envbuilder.core import types
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.core.settings import Configuration
from envbuilder.locks.availability import base_images
from envbuilder.locks.availability import files as online
from envbuilder.locks.availability.files import Pin
from envbuilder.locks.availability.queries import Answer, Page
from envbuilder.packages import locations
from envbuilder.packages.debian import mirrors
from envbuilder.packages.locations import Place
from envbuilder.packages.python.static_index import Offer
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.locked_file import File
from tests.support import index_server
from tests.support.engines import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.locks.availability.files import Finding

QUIET = PlainProgress(lambda line: None)
NOWHERE = "http://127.0.0.1:9/simple"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file(name: str = "leaf", content: bytes = b"leaf", **changes: object) -> File:
    plain = File(
        kind="wheel", name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl",
        sha256=sha(content), size=len(content), source="default", provenance="read", by="a test",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def offer(of: File, folder: Path | None = None, content: bytes | None = None) -> Offer:
    """What an index offers; `content` is what it really has."""
    location = ""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / of.file
        path.write_bytes(b"x" * (of.size or 0) if content is None else content)
        location = str(path)
    return Offer(
        distribution=of.name, version=of.version, file=of.file, sha256=of.sha256, source="",
        provenance="read", by="", location=location,
    )  # fmt: skip


class Default:
    """The places of the user's own index."""

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Default:
    made = Default()
    monkeypatch.setattr(locations, "places", lambda: made.places)
    monkeypatch.setattr(locations, "find_links", lambda: (tmp_path / "links",))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    return made


def check(found: Settings, *files: File, held: Any = None) -> dict[str, Finding]:
    pins = tuple(Pin(file=f, profiles=("tiny",)) for f in files)
    return {f.name: f for f in online.check(pins, found, QUIET, held or {})}


# --- one index


def test_what_an_index_lists_with_its_hash_is_fine(
    default: Default, found: Settings, tmp_path: Path
) -> None:
    leaf, top = file(), file("top", b"top!")
    with index_server.serve([offer(leaf, tmp_path / "a"), offer(top, tmp_path / "a")]) as url:
        default.places = (Place(url=url),)
        assert {n: f.status for n, f in check(found, leaf, top).items()} == {
            "leaf": "fine",
            "top": "fine",
        }


def test_vanished_and_changed_are_told_apart(
    default: Default, found: Settings, tmp_path: Path
) -> None:
    gone, other, deleted, size = (file(n) for n in ("gone", "other", "deleted", "size"))
    there = [
        offer(msgspec.structs.replace(gone, file="gone-2.0-py3-none-any.whl", version="2.0")),
        offer(msgspec.structs.replace(other, sha256="e" * 64)),
        offer(deleted, tmp_path / "a"),
        offer(size, tmp_path / "a", b"longer"),
    ]
    (tmp_path / "a" / deleted.file).unlink()
    with index_server.serve(there) as url:
        default.places = (Place(url=url),)
        seen = check(found, gone, other, deleted, size, file("never"))
    said = {n: (f.status, f.detail) for n, f in seen.items()}
    assert said == {
        "gone": ("vanished", "its index does not list it any more"),
        "other": ("changed", f"its index states sha256 {'e' * 64}"),
        "deleted": ("vanished", "its index lists it, but 127.0.0.1 no longer has it"),
        "size": ("changed", "127.0.0.1 has 6 bytes, the lock 4"),
        "never": ("vanished", "its index does not list it any more"),
    }
    assert all(f.lost for f in seen.values())


def test_silence_is_neither_fine_nor_lost(default: Default, found: Settings) -> None:
    default.places = (Place(url=NOWHERE),)
    (seen,) = check(found, file()).values()
    assert (seen.status, seen.lost) == ("unknown", False)
    assert seen.detail.startswith("127.0.0.1: ")


def test_any_of_the_users_indexes_will_do(
    default: Default, found: Settings, tmp_path: Path
) -> None:
    with index_server.serve([offer(file(), tmp_path / "a")]) as url:
        default.places = (Place(url=NOWHERE), Place(url=url))
        (seen,) = check(found, file()).values()
        assert seen.status == "fine"
        # One that is silent may be the one that has it.
        (seen,) = check(found, file("gone")).values()
        assert seen.status == "unknown"


def test_a_named_source_is_asked_where_it_is_configured(found: Settings, tmp_path: Path) -> None:
    torch = file("torch", source="pytorch-cpu")
    with index_server.serve([offer(torch, tmp_path / "a")]) as url:
        there = Configuration(indexes={"pytorch-cpu": url})
        settings = msgspec.structs.replace(found, configuration=there)
        assert check(settings, torch)["torch"].status == "fine"


def test_folders_are_indexes_and_find_links_too(
    default: Default, found: Settings, tmp_path: Path
) -> None:
    leaf = file()
    folder = tmp_path / "index" / "leaf"
    folder.mkdir(parents=True)
    (folder / leaf.file).write_bytes(b"leaf")
    page = f'<a href="{leaf.file}#sha256={leaf.sha256}">x</a>'
    (folder / "index.html").write_text(page)
    default.places = (Place(url=(tmp_path / "index").as_uri()),)
    assert check(found, leaf)["leaf"].status == "fine"
    (folder / leaf.file).unlink()
    assert check(found, leaf)["leaf"].status == "vanished"
    default.places = (Place(url=str(tmp_path / "none"), flat=True),)
    assert check(found, leaf)["leaf"].status == "vanished"


# --- elsewhere


def test_the_same_bytes_are_looked_for_elsewhere(
    default: Default, found: Settings, tmp_path: Path
) -> None:
    stored, linked, bundled, mirrored, lost = (
        file(n, n.encode()) for n in ("stored", "linked", "bundled", "mirrored", "lost")
    )
    Store(found.store_dir).take(stored.sha256, [b"stored"])
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / linked.file).write_bytes(b"linked")
    (tmp_path / "links" / lost.file).write_bytes(b"other bytes")
    upstream = msgspec.structs.replace(mirrored, source="pytorch-cpu")
    with (
        index_server.serve([]) as empty,
        index_server.serve([offer(mirrored, tmp_path / "m")]) as mirror,
    ):
        default.places = (Place(url=mirror),)
        there = Configuration(indexes={"pytorch-cpu": empty})
        seen = check(
            msgspec.structs.replace(found, configuration=there),
            *(stored, linked, bundled, upstream, lost),
            held={"a.tar": frozenset({bundled.sha256})},
        )
    assert {n: f.elsewhere for n, f in seen.items()} == {
        "stored": ("the store",),
        "linked": (str(tmp_path / "links"),),
        "bundled": ("the bundle a.tar",),
        "mirrored": ("127.0.0.1",),
        "lost": (),
    }
    assert [n for n, f in seen.items() if f.lost] == ["lost"]


def test_damaged_bytes_are_not_the_same(default: Default, found: Settings) -> None:
    leaf = file()
    Store(found.store_dir).take(leaf.sha256, [b"rotten"])
    with index_server.serve([]) as url:
        default.places = (Place(url=url),)
        assert check(found, leaf)["leaf"].lost


# --- Debian's archives


def deb(**changes: object) -> File:
    return file("libx", kind="deb", file="pool/main/x/libx_1_amd64.deb", source="debian", **changes)


class Asked:
    """Answers by host."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers

    def file(self, url: str) -> Answer:
        return self.answers[url.split("/")[2]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


RIGHT = Answer(state="there", host="h", size=4)
LARGER = Answer(state="there", host="h", size=5)
GONE = Answer(state="gone", host="h")
SILENT = Answer(state="silent", host="h", problem="timed out")


@pytest.mark.parametrize(
    ("mirror", "snapshot", "status"),
    [
        (RIGHT, SILENT, "fine"),
        (GONE, RIGHT, "fine"),
        (SILENT, RIGHT, "fine"),
        (LARGER, RIGHT, "fine"),
        (GONE, GONE, "vanished"),
        (GONE, SILENT, "unknown"),
        (LARGER, GONE, "changed"),
        (LARGER, SILENT, "unknown"),
        (Answer(state="there", host="h"), GONE, "unknown"),
    ],
)
def test_a_deb_is_where_any_archive_has_it(
    mirror: Answer,
    snapshot: Answer,
    status: str,
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirrors, "urls", lambda *args: ("http://mirror/x", "http://snapshot/x"))
    asked: Any = Asked({"mirror": mirror, "snapshot": snapshot})
    pins = (Pin(file=deb(), profiles=("tiny",)),)
    (seen,) = online.check(pins, found, QUIET, {}, asked)
    assert seen.status == status


# --- base images

DIGEST = "sha256:" + "d" * 64


def based(found: Settings, answer: Any, held: Any = None) -> Finding:
    """What is left of a base image whose registry gives an answer, or raises one."""

    class Registry:
        def url(self, path: str) -> str:
            return path

        def ask(self, method: str, url: str, what: str, **_: Any) -> Any:
            assert (method, url) == ("HEAD", f"manifests/{DIGEST}")
            if isinstance(answer, Exception):
                raise answer
            return registry_connection.Answer(status=answer, headers={}, url=url)

    pin = base_images.BasePin(
        ref="python:3.11", digest=DIGEST, platforms=("linux/amd64",), profiles=("tiny",)
    )
    connect: Any = lambda *args: Registry()  # noqa: E731
    (seen,) = base_images.check([pin], found, QUIET, held or {}, connect)
    return seen


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (200, "fine"),
        (404, "vanished"),
        (BrokenOffError("timed out"), "unknown"),
        (BuildError("docker.io: HTTP 401"), "unknown"),
    ],
)
def test_a_base_image_is_asked_for_by_its_digest(
    answer: Any, status: str, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ToolError("no engine")

    monkeypatch.setattr(connection, "connect", refuse)
    assert based(found, answer).status == status
    seen = based(found, 404, {"a.tar": frozenset({"d" * 64})})
    assert (seen.elsewhere, seen.lost) == (("the bundle a.tar",), False)


def test_an_engine_may_have_the_base_image(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeEngine(f"python:3.11@{DIGEST}").serve(monkeypatch)
    assert based(found, 404).elsewhere == ("the engine",)


def test_base_images_that_locks_share_are_asked_for_once() -> None:
    base = profile_lock.LockedBase(
        ref="python:3.11", digest=DIGEST, date=None, python_path="/usr/bin/python3",
        python_version="3.11.2",
    )  # fmt: skip
    made = [
        profile_lock.Lock(
            schema=2, profile=name, inputs="0" * 64, state="locked", reason="", tools={},
            targets=(
                profile_lock.Target(platform="linux/amd64", python="3.11", base=base, files=()),
                profile_lock.Target(platform="linux/arm64", python="3.11", base=base, files=()),
            ),
        )
        for name in ("one", "two")
    ]  # fmt: skip
    (pin,) = base_images.pins(made)
    assert (pin.platforms, pin.profiles) == (("linux/amd64", "linux/arm64"), ("one", "two"))


# --- pure parts


OFFERS = st.builds(
    lambda name, digest: offer(msgspec.structs.replace(file(name), sha256=digest)),
    st.sampled_from(["leaf", "other"]),
    st.sampled_from(["", sha(b"leaf"), "e" * 64]),
)
PAGES = st.lists(
    st.builds(
        lambda offers, problem: Page(offers=tuple(offers), problem=problem),
        st.lists(OFFERS, max_size=3),
        st.sampled_from(["", "timed out"]),
    ),
    max_size=3,
)


@given(PAGES)
def test_only_the_right_hash_is_fine_and_only_answers_lose(pages: list[Page]) -> None:
    status, _, _ = online.listed(file(), pages)
    mine = {o.sha256 for p in pages for o in p.offers if o.file == file().file}
    assert (status == "fine") == (sha(b"leaf") in mine)
    if status in {"vanished", "changed"}:
        assert not any(p.problem for p in pages)
        assert "" not in mine


@given(
    st.builds(
        Answer,
        state=st.sampled_from(["there", "gone", "silent"]),
        host=st.just("h"),
        size=st.sampled_from([None, 4, 5]),
        problem=st.just("x"),
    ),
    st.booleans(),
    st.sampled_from([None, 4]),
)
def test_what_a_server_says(answer: Answer, hashed: bool, size: int | None) -> None:
    status, detail = online.of_server(answer, file(size=size), hashed=hashed)
    assert (status == "fine") == (detail == "")
    if status == "fine":
        assert answer.state == "there"
        assert hashed or answer.size == size


# --- the command


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["lock", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the locked profile `tiny`, which is one wheel."""
    folder = tmp_path / "project"
    (folder / "profiles" / "locks").mkdir(parents=True)
    (folder / "envbuilder.yaml").write_text("")
    (folder / "profiles" / "tiny.yaml").write_text(
        "description: Small\naccelerator: cpu\nplatforms: [linux/amd64]\nbackends: [venv]\n"
        'python: {default: "3.11", supported: ["3.11"]}\ntools: {uv: 0.13.8}\n'
        "requirements: [leaf==1.0]\nexpects: {device: cpu, version: 2.13.0}\n"
    )
    monkeypatch.chdir(folder)
    return folder


def lock(project: Path, uv: File, *files: File) -> None:
    from envbuilder.profiles import profile as profiles

    profile = profiles.load("tiny", profiles.search_path(project, project))
    target = profile_lock.Target(platform="linux/amd64", python="3.11", base=None, files=files)
    made = profile_lock.Lock(
        schema=2, profile="tiny", inputs=profile_lock.inputs_digest(profile), state="locked",
        reason="", tools=dict.fromkeys(types.PLATFORMS, uv), targets=(target,),
    )  # fmt: skip
    (project / "profiles" / "locks" / "tiny.json").write_text(profile_lock.dump(made))


def test_exit_codes_and_words(
    project: Path, default: Default, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leaf = file()
    uv = file("uv", b"tool", kind="tool", version="0.13.8", file="uv-0.13.8-py3-none-any.whl")
    lock(project, uv, leaf)
    offered = [offer(f, tmp_path / "a") for f in (leaf, uv)]
    arguments = ("--check", "--online", "--profile", "tiny")
    with index_server.serve(offered) as url:
        default.places = (Place(url=url),)
        assert run(*arguments) == 0
        said = capsys.readouterr().out
        assert "tiny                locked    fresh" in said
        assert "files: 2; available: 2; gone or changed: 0, found nowhere: 0;" in said
    default.places = (Place(url=NOWHERE),)
    assert run(*arguments) == 4
    assert f"not checked: {leaf.file} (tiny): 127.0.0.1: " in capsys.readouterr().out
    with index_server.serve(offered[1:]) as url:
        default.places = (Place(url=url),)
        assert run(*arguments) == 2
        assert "the same bytes were found nowhere" in capsys.readouterr().out
        assert run(*arguments, "--json") == 2
        told = json.loads(capsys.readouterr().out)
        assert told["online"]["lost"] == 1
        assert told["online"]["findings"][0]["status"] == "vanished"
        assert told["online"]["findings"][0]["profiles"] == ["tiny"]
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / leaf.file).write_bytes(b"leaf")
        assert run(*arguments) == 0
        assert f"the same bytes are in {tmp_path / 'links'}" in capsys.readouterr().out


def test_online_belongs_to_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = ("--bundle", str(project / "envbuilder.yaml"))
    for arguments in (["--online"], ["--check", *bundle], bundle):
        assert run(*arguments) == 2
        assert "belongs to --check" in capsys.readouterr().err
