"""Sources that do not answer: which are asked, how long, and what is said about them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.builds import render
from envbuilder.containers.oci.layout import MARK
from envbuilder.containers.registry import base_images
from envbuilder.core.errors import ToolError
from envbuilder.core.http import open_session
from envbuilder.core.settings import Configuration, Settings
from envbuilder.doctor import surroundings
from envbuilder.doctor.problem import Problem
from envbuilder.doctor.surroundings import Source
from envbuilder.host import interpreters
from envbuilder.host.model import Containers
from envbuilder.packages import fetch
from envbuilder.packages.fetch import Place
from envbuilder.packages.interpreters import SOURCE
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import BUILT, File, Lock, Recipe, Target
from tests.support.broken_hosts import BY_NAME, LINUX
from tests.support.http_server import Quiet, serving
from tests.support.shipped import shipped_lock

CPU = BY_NAME["cpu"]
HOST = replace(LINUX, containers=Containers())
REAL_ASK = surroundings.ask
ASKED: dict[str, str] = {}
PYPI = Place(url="https://me:token@index.example/simple")


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "places", lambda: (PYPI, Place(url="/opt/wheels", flat=True)))
    monkeypatch.setattr(fetch, "find_links", lambda: ())


@pytest.fixture
def lock() -> Lock:
    return shipped_lock("cpu")


@pytest.fixture(autouse=True)
def reasons(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Why sources do not answer, by name; "" is for all. URLs that were asked are in `ASKED`."""
    why: dict[str, str] = {}
    ASKED.clear()

    def ask(source: Source, session: object) -> str:
        del session
        ASKED[source.name] = source.url
        return why.get(source.name, why.get("", ""))

    monkeypatch.setattr(surroundings, "ask", ask)
    return why


def look(found: Settings, lock: Lock | None) -> list[Problem]:
    profile = CPU if lock else None
    silent = surroundings.silent_sources(profile, lock, HOST, found)
    return surroundings.problems(silent)


def said(found: Settings, lock: Lock | None) -> dict[str, str]:
    """Return what is said of each source that does not answer, by its code."""
    return {p.code: f"{p.text} {p.fix}" for p in look(found, lock)}


def test_what_a_profile_needs_is_asked(found: Settings, lock: Lock) -> None:
    assert look(found, lock) == []
    urls = ASKED
    assert set(urls) == {"default", "pytorch-cpu", "docker.io"}
    assert urls["default"].startswith("https://me:token@index.example/simple/")
    assert urls["pytorch-cpu"] == "https://download.pytorch.org/whl/cpu/torch/"
    assert urls["docker.io"] == "https://registry-1.docker.io/v2/"


def test_what_is_configured_is_asked(found: Settings, lock: Lock) -> None:
    configuration = Configuration(
        mirrors={"docker.io": "127.0.0.1:5000/hub"},
        indexes={"pytorch-cpu": "https://m.example/cpu", "debian": "https://m.example/debian"},
    )
    look(replace(found, configuration=configuration), lock)
    urls = ASKED
    assert urls["docker.io"] == "http://127.0.0.1:5000/v2/"
    assert urls["pytorch-cpu"] == "https://m.example/cpu/torch/"
    assert urls["debian"] == "https://m.example/debian/"


def test_without_a_profile_the_indexes_are_asked(found: Settings) -> None:
    look(found, None)
    assert set(ASKED) == {"default"}


def test_what_is_built_from_its_source_has_no_index(found: Settings, lock: Lock) -> None:
    recipe = Recipe(kind="git", location="https://host.example/x", sha256="0" * 64)

    def with_source(target: Target) -> Target:
        first, *others = target.files
        return replace(target, files=(replace(first, source=BUILT, recipe=recipe), *others))

    lock = replace(lock, targets=tuple(map(with_source, lock.targets)))
    assert look(found, lock) == []
    assert BUILT not in {*ASKED, *render.source_urls(lock, found)}


PYTHON = File(
    kind="python", name="cpython", version="3.11.16", source=SOURCE, provenance="claim",
    by="a test", file="20260814/cpython-3.11.16.tar.gz", sha256="0" * 64, size=3 << 20,
)  # fmt: skip


def with_python(lock: Lock, interpreter: File | None = PYTHON) -> Lock:
    return replace(lock, targets=tuple(replace(t, interpreter=interpreter) for t in lock.targets))


@pytest.mark.parametrize("managed", [False, True])
def test_a_managed_interpreter_is_a_file_of_the_environment(
    found: Settings, lock: Lock, reasons: dict[str, str], managed: bool
) -> None:
    reasons[SOURCE] = "HTTP 404"
    profile = replace(CPU, python=replace(CPU.python, managed=managed))
    silent = surroundings.silent_sources(profile, with_python(lock), HOST, found)
    assert [s.rest for s in silent] == managed * [
        "1 of the 1 files that cpu takes from it are not here yet"
    ]
    assert ASKED.get(SOURCE, "").endswith(f"/{PYTHON.file}") == managed
    needed = [
        max(disk.needed for disk in surroundings._rooms(profile, each, HOST, found))
        for each in (lock, with_python(lock))
    ]
    assert (needed[1] > needed[0]) == managed


@pytest.mark.parametrize(
    ("managed", "here", "locked", "said"),
    [
        (False, True, False, ""),
        (False, False, True, ""),
        (False, False, False, "there is no Python here"),
        (True, False, True, ""),
        (True, True, False, "the lock of 'cpu' has no interpreter for linux/amd64"),
    ],
)
def test_an_interpreter_is_of_the_machine_or_of_the_lock(
    lock: Lock, monkeypatch: pytest.MonkeyPatch, managed: bool, here: bool, locked: bool, said: str
) -> None:
    def find(*_: object) -> None:
        assert not managed
        if not here:
            raise ToolError("there is no Python here", "Install one.")

    monkeypatch.setattr(interpreters, "find", find)
    profile = replace(CPU, python=replace(CPU.python, managed=managed))
    text, fix = surroundings._python(profile, with_python(lock) if locked else lock, HOST)
    assert (text[: len(said)], bool(text), bool(fix)) == (said, bool(said), bool(said))


def test_an_image_on_disk_needs_no_registry(
    found: Settings, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILDER_BASE_IMAGE", "oci:/srv/base")
    look(found, lock)
    assert "docker.io" not in ASKED


def test_what_is_missing_is_said_and_no_credential(
    found: Settings, lock: Lock, reasons: dict[str, str]
) -> None:
    reasons |= {"default": "name not found", "docker.io": "connection refused"}
    texts = said(found, lock)
    target = profile_lock.first(lock, HOST.platform)
    count = sum(f.source == "default" for f in target.of_kind("wheel")) + 1  # uv
    assert (
        "your package index (index.example) does not answer (name not found)"
        in (texts["index-silent"])
    )
    assert f"{count} of the {count} files that cpu takes from it" in texts["index-silent"]
    assert "token" not in texts["index-silent"]
    assert "cannot be pulled; native environments need none" in texts["registry-silent"]
    assert "ENVBUILDER_BASE_IMAGE=REF" in texts["registry-silent"]


def test_a_machine_that_has_everything_is_not_called_broken(
    found: Settings,
    lock: Lock,
    reasons: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = profile_lock.first(lock, HOST.platform)
    for file in (*target.of_kind("wheel"), lock.tool(HOST.platform)):
        (tmp_path / file.basename).touch()
    monkeypatch.setattr(fetch, "find_links", lambda: (tmp_path,))
    assert target.base.digest is not None
    kept = base_images.folder(found.cache_dir, target.base.digest, target.platform)
    kept.mkdir(parents=True)
    (kept / MARK).touch()
    reasons |= {"": "timed out"}
    problems = look(found, lock)
    assert {p.severity for p in problems} == {"limits"}
    assert ["can be built" in p.text for p in problems] == [True] * len(problems)


def test_a_refusal_is_no_silence(found: Settings, lock: Lock, reasons: dict[str, str]) -> None:
    reasons |= {"pytorch-cpu": "HTTP 403 Forbidden"}
    texts = said(found, lock)
    assert "index pytorch-cpu (download.pytorch.org) answers HTTP 403" in texts["index-silent"]
    assert "ENVBUILDER_INDEX_PYTORCH_CPU=URL" in texts["index-silent"]


def test_a_source_that_hangs_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    slow, quick = (Source(kind="index", name=n, url=f"https://{n}.example") for n in ("a", "b"))

    def ask(source: Source, session: object) -> str:
        del session
        return "" if source == quick or end.wait(60) else "x"

    monkeypatch.setattr(surroundings, "ask", ask)
    before = time.monotonic()
    silent = surroundings.silences([slow, quick], patience=0.1)
    assert time.monotonic() - before < 30
    end.set()
    assert silent == (replace(slow, reason="timed out after 0.1 s"),)


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers every request with one status."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            self.send_response(request.param)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"http://127.0.0.1:{server.server_port}/"


@pytest.mark.parametrize(
    ("answering", "kind", "must_have", "why"),
    [
        (200, "index", True, ""),
        (404, "index", True, "HTTP 404 Not Found"),
        (401, "registry", False, ""),
        (404, "mirror", False, "HTTP 404 Not Found"),
    ],
    indirect=["answering"],
)
def test_a_status(answering: str, kind: str, must_have: bool, why: str) -> None:
    source = Source(kind=kind, name="x", url=answering, must_have=must_have)  # type: ignore[arg-type]
    assert REAL_ASK(source, open_session(direct=True)) == why


def test_a_closed_port() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v2/"
        source = Source(kind="registry", name="x", url=url)
        assert REAL_ASK(source, open_session(direct=True)) == "connection refused"
