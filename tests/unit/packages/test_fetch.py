"""Files are located, fetched and checked."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from envbuilder.core import files, http, http_transport, process
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, ChangedFileError, WrongHashError
from envbuilder.core.settings import Settings
from envbuilder.packages import fetch
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File, Target
from tests.support.faulty_server import FAULTS, Exchange, FaultyServer
from tests.support.tools import tools

CONTENT = bytes(range(256)) * 8192  # 2 MiB, so that it comes in several pieces
NAME = "tiny-1.0-py3-none-any.whl"


def wheel(content: bytes = CONTENT) -> File:
    return File(
        kind="wheel",
        name="tiny",
        version="1.0",
        file=NAME,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        source="default",
        provenance="read",
        by="test",
    )


def target(*files: File) -> Target:
    return Target(platform="linux/amd64", python="3.11", base=None, files=files)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(CONTENT) as made:
        yield made


@pytest.fixture(autouse=True)
def located(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, str]:
    """uv would find the file at this server; retries do not sleep."""
    urls = {NAME: f"{server.url}/{NAME}"}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(fetch, "_ask_uv", lambda *args: urls)
    monkeypatch.setattr(fetch, "find_links", lambda: (tmp_path / "links",))
    monkeypatch.setattr(http_transport.Session, "pause", lambda self, seconds: None)
    return urls


def test_uv_is_asked_once_for_the_users_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(argv: list[str], *, folder: Path, **options: Any) -> process.Completed:
        asked.append(argv)
        (folder / "places.txt").write_text("--index-url https://i/simple\n--find-links /w\n")
        return process.Completed(argv=(), returncode=0, stdout="", stderr="", seconds=0)

    monkeypatch.setattr(process, "run_uv", run)
    for value in ("first", "first", "second"):
        monkeypatch.setenv("UV_INDEX", value)
        found = {place.url: place.flat for place in fetch.places()}
    assert found.items() >= {"https://i/simple": False, "/w": True}.items()
    assert len(asked) == 2


def status(line: str) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.answer(line, Content_Length="0")


def run(found: Settings, *files: File) -> int:
    return fetch.fetch(files, target(*files), found, PlainProgress(lambda line: None))


def test_a_file_comes_once(found: Settings, server: FaultyServer) -> None:
    assert run(found, wheel()) == 1
    assert Store(found.store_dir).path(wheel().sha256).read_bytes() == CONTENT
    assert run(found, wheel()) == 0
    assert len(server.ranges) == 1


def test_what_has_arrived_is_named(found: Settings, server: FaultyServer) -> None:
    arrived: list[File] = []
    progress = PlainProgress(lambda line: None)
    fetch.fetch([wheel()], target(wheel()), found, progress, arrived.append)
    assert arrived == [wheel()]


def test_a_cut_connection_is_resumed(found: Settings, server: FaultyServer) -> None:
    server.script = ["closes early"] * 2
    run(found, wheel())
    assert Store(found.store_dir).has(wheel().sha256)
    half = len(CONTENT) // 2
    assert server.ranges == ["", f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_a_rotten_partial_file_is_not_trusted(found: Settings, server: FaultyServer) -> None:
    """What a killed process left may be of other bytes: one more try from the start."""
    part = found.store_dir / "partial" / wheel().sha256
    part.parent.mkdir(parents=True)
    part.write_bytes(b"!" * 1000)
    run(found, wheel())
    assert server.ranges == ["bytes=1000-", ""]
    assert Store(found.store_dir).path(wheel().sha256).read_bytes() == CONTENT


@pytest.mark.parametrize("first", ["wrong", "missing", "unreadable"])
def test_the_next_folder_of_find_links_may_have_it(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    one, two = folders = (tmp_path / "one", tmp_path / "two")
    for folder in folders:
        folder.mkdir()
    (two / NAME).write_bytes(CONTENT)
    if first != "missing":
        (one / NAME).write_bytes(b"other")

    def sha256(path: Path) -> str:
        if first == "unreadable" and path.parent == one:
            raise PermissionError(13, "Permission denied")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(fetch, "file_sha256", sha256)
    monkeypatch.setattr(fetch, "find_links", lambda: folders)
    monkeypatch.setattr(fetch, "_locate", lambda *args: pytest.fail("an index was asked"))
    assert run(found, wheel()) == 1
    assert Store(found.store_dir).path(wheel().sha256).read_bytes() == CONTENT


def test_another_file_in_a_folder_of_find_links_is_named(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / NAME).write_bytes(b"other")
    monkeypatch.setattr(fetch, "_locate", Mock(side_effect=BuildError("not found", "Check it")))
    with pytest.raises(ChangedFileError) as caught:
        run(found, wheel())
    assert f"{tmp_path / 'links'} serves another file under this name" in caught.value.message
    assert hashlib.sha256(b"other").hexdigest() in caught.value.message
    assert caught.value.hints[-1].command == ("lock",)


def test_a_file_of_a_local_index_is_copied(
    found: Settings, tmp_path: Path, located: dict[str, str]
) -> None:
    path = tmp_path / "a folder" / NAME
    located[NAME] = path.as_uri()
    with pytest.raises(BuildError, match=r"the file no longer exists"):
        run(found, wheel())
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    run(found, wheel())
    assert Store(found.store_dir).path(wheel().sha256).read_bytes() == CONTENT


def test_every_source_is_named_with_its_problem(
    found: Settings, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = (server.url, server.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setattr(fetch, "_locate", lambda *args: {wheel().sha256: urls})
    server.script = [status("404 Not Found"), status("403 Forbidden")]
    with pytest.raises(BuildError) as caught:
        run(found, wheel())
    assert caught.value.message == (
        f"{NAME}: cannot be fetched: 127.0.0.1: HTTP 404 Not Found; localhost: HTTP 403 Forbidden"
    )


def test_the_largest_files_come_first(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int | None] = []
    monkeypatch.setattr(fetch, "PARALLEL", 1)
    monkeypatch.setattr(fetch, "_locate", lambda *args: {})
    monkeypatch.setattr(fetch, "_download_one", lambda file, *_: order.append(file.size))
    run(found, *(msgspec.structs.replace(wheel(), size=size) for size in (2, None, 3)))
    assert order == [3, 2, None]


def test_what_no_index_lists_is_named(found: Settings, located: dict[str, str]) -> None:
    located.clear()
    with pytest.raises(BuildError, match="index of 'default' does not list it") as caught:
        run(found, wheel())
    assert "envbuilder lock" in caught.value.hint


def test_a_full_disk_is_an_error_with_advice(
    found: Settings, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(http, "_growing", full)
    with pytest.raises(BuildError, match="no space left") as caught:
        run(found, wheel())
    assert "ENVBUILDER_CACHE_DIR" in caught.value.hint


def answered(text: str) -> Callable[..., process.Completed]:
    """What uv does: its answer is a file in its working folder."""

    def run(argv: list[str], **options: Any) -> process.Completed:
        (options["cwd"] / "pylock.toml").write_text(text)
        return process.Completed(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.1)

    return run


def test_uv_is_asked_for_exactly_the_pins(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    seen: dict[str, Any] = {}
    answer = (
        'lock-version = "1.0"\n[[packages]]\nname = "tiny"\n'
        f'wheels = [{{ url = "https://files.example/x/{NAME}" }}]\n'
    )

    def fake(argv: list[str], **options: Any) -> process.Completed:
        seen["argv"], seen["pins"] = argv, (options["cwd"] / argv[-1]).read_text()
        seen["options"] = options
        return answered(answer)(argv, **options)

    monkeypatch.setattr(process, "run", fake)
    monkeypatch.setattr(fetch, "uv_variables", lambda source, settings: {"UV_INDEX": "https://x"})
    urls = fetch._ask_uv("linux/amd64", "3.11", "default", [wheel()], found)
    assert urls == {NAME: f"https://files.example/x/{NAME}"}
    assert seen["pins"] == f"tiny==1.0 --hash=sha256:{wheel().sha256}"
    words = " ".join(seen["argv"])
    assert "--only-binary :all: --python-platform x86_64-manylinux_2_28 --python-version" in words
    assert {"--no-deps", "--no-python-downloads"} <= set(seen["argv"])
    assert seen["options"]["env"]["UV_INDEX"] == "https://x"
    for_all = [*tools().values()]
    fetch._ask_uv(None, "3.11", "default", for_all, found)
    hashes = " ".join(f"--hash=sha256:{f.sha256}" for f in for_all)
    assert seen["pins"] == f"uv==0.13.8 {hashes}"
    assert "--universal" in seen["argv"]
    assert "--python-platform" not in seen["argv"]


PLUS = "torch-2.13.0+cpu-py3-none-any.whl"
ESCAPED = f"https://files.example/x/{PLUS.replace('+', '%2B')}#sha256=0"


def test_the_urls_of_wheels_are_taken_from_what_uv_answers(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = f'[[packages]]\nname = "torch"\nwheels = [{{ url = "{ESCAPED}" }}]\n'
    monkeypatch.undo()
    monkeypatch.setattr(process, "run", answered(answer))
    monkeypatch.setattr(fetch, "uv_variables", lambda source, settings: {})
    assert fetch._ask_uv("linux/amd64", "3.11", "default", [wheel()], found) == {PLUS: ESCAPED}


def test_what_uv_does_not_find_is_named_with_the_reason(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    printed = "error: x\n  cause: Failed to fetch: https://h.example/a\n  cause: Connection refused"
    done = process.Completed(argv=(), returncode=2, stdout="", stderr=printed, seconds=0.1)
    monkeypatch.setattr(process, "run", lambda *args, **options: done)
    monkeypatch.setattr(fetch, "uv_variables", lambda source, settings: {})
    files = [msgspec.structs.replace(wheel(), name=f"p{n}") for n in range(6)]
    with pytest.raises(BuildError) as caught:
        fetch._ask_uv("linux/amd64", "3.11", "default", files, found)
    assert caught.value.message == (
        f"cannot find 6 files of the lock (p0, p1, p2, p3, p4 and 1 more) at 'default':\n{printed}"
    )


def test_of_what_the_index_no_longer_has_the_one_is_named(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    printed = (
        "error: No solution found when resolving dependencies\n  cause: Because there is no version"
        " of p-1==1.0 and you require p-1==1.0, we can conclude that your requirements are"
        " unsatisfiable."
    )
    done = process.Completed(argv=(), returncode=1, stdout="", stderr=printed, seconds=0.1)
    monkeypatch.setattr(process, "run", lambda *args, **options: done)
    monkeypatch.setattr(fetch, "uv_variables", lambda source, settings: {})
    files = [msgspec.structs.replace(wheel(), name=n, version="1.0") for n in ("p", "p-1", "p-12")]
    with pytest.raises(BuildError, match=r"has these locked files: p-1 1\.0:\n") as caught:
        fetch._ask_uv("linux/amd64", "3.11", "default", files, found)
    assert "envbuilder lock" in caught.value.hint


def test_a_tool_is_looked_for_whatever_the_targets_platform(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    asked: dict[str | None, list[str]] = {}

    def fake(
        platform: str | None, python: str, source: str, files: list[File], settings: Settings
    ) -> dict[str, str]:
        asked[platform] = [f.name for f in files]
        return {f.basename: "https://x" for f in files}

    monkeypatch.setattr(fetch, "_ask_uv", fake)
    uv = tools()["macos/arm64"]
    urls = fetch._locate(target(wheel()), [uv, wheel()], found)
    assert asked == {None: ["uv"], "linux/amd64": ["tiny"]}
    assert urls.keys() == {uv.sha256, wheel().sha256}


# --- servers that misbehave: each is given up soon, and the next run succeeds

SMALL = bytes(range(256)) * 16
GIVEN_UP = {
    "silent": r"timed out after 0\.2 s|was not complete after 0\.25 s",
    # Where others keep the machine busy, what it waits for in all can end first.
    "silent in the head": r"timed out after 0\.2 s|was not complete after 0\.25 s",
    "silent in the body": "timed out",
    "drips in the head": r"the head of the response was not complete after 0\.25 s",
    "drips in the body": r"the response was not complete after 0\.\d+ s",
    "drips chunks": r"the response was not complete after 0\.\d+ s",
    "endless headers": "not a valid HTTP response",
    "endless header": "not a valid HTTP response",
    # Python 3.14 bounds their number.
    "endless 100 Continue": r"not complete after 0\.25 s|not a valid HTTP response",
    "endless chunk size": "the connection broke off after 0 bytes",
    "endless trailers": r"the response was not complete after 0\.\d+ s",
    "damaged gzip": "the response contains damaged compressed data",
    "unknown compression": "the response uses a compression that was not requested",
    "announces nonsense": "the connection broke off after 9 of 4096 bytes",
    "closes at once": "connection reset",
    "closes early": r"the connection broke off after \d+ of \d+ bytes",
    "another range": "the server does not resume the download where it was interrupted",
    "a range not requested": "the server sent part of the file, although all of it was requested",
    "no ranges, closes early": r"the connection broke off after 2048 of 4096 bytes",
    "a redirect to itself": "too many redirects",
    "a redirect with an endless body": "too many redirects",
    "a redirect to a file": "the server redirects to an address that is not http or https",
    "a redirect to no address": "the server redirects to an invalid address",
    "a login page": "sent a web page instead of the file",
    "unavailable": "HTTP 503 Service Unavailable",
    "busy until tomorrow": "HTTP 429 Too Many Requests",
    "broken chunks": "the connection broke off after 0 bytes",
    "no status": "not a valid HTTP response",
    "TLS": "not a valid HTTP response",
}
OTHER_FILE = {
    "endless body": "but the response is larger than 4096 bytes",
    "a gzip bomb": "but the response is larger than 4096 bytes",
    "announces less": rf"but its sha256 is {hashlib.sha256(SMALL[:100]).hexdigest()}",
    "announces more": "but the response has 1000000000000 bytes, more than the limit of 4096",
    "other bytes": rf"but its sha256 is {hashlib.sha256(SMALL[::-1]).hexdigest()}",
    "an empty file": rf"but its sha256 is {hashlib.sha256(b'').hexdigest()}",
}


@pytest.fixture
def faulty(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> FaultyServer:
    """The server with little to send, and a client that waits for nearly nothing."""
    monkeypatch.setattr(http, "ATTEMPTS", 2)
    monkeypatch.setattr(http, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(http_transport.Session, "timeout", (1.0, 0.2))
    monkeypatch.setattr(http_transport.Session, "head_seconds", 0.25)
    monkeypatch.setattr(fetch, "open_session", http_transport.Session)
    server.content = SMALL
    return server


def test_every_fault_is_tried() -> None:
    healed = {"other bytes after a resume", "other bytes each time"}
    assert FAULTS.keys() == GIVEN_UP.keys() | OTHER_FILE.keys() | healed


@pytest.mark.parametrize(
    ("fault", "kind", "problem"),
    [
        *((fault, BuildError, problem) for fault, problem in GIVEN_UP.items()),
        *((fault, ChangedFileError, problem) for fault, problem in OTHER_FILE.items()),
        ("other bytes each time", ChangedFileError, "serves another file"),
    ],
)
def test_a_fault_is_an_error_and_the_next_run_succeeds(
    fault: str,
    kind: type[BuildError],
    problem: str,
    found: Settings,
    faulty: FaultyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty.fault = fault
    resumed = "early" in fault or "range" in fault
    monkeypatch.setattr(http, "ATTEMPTS", 2 if resumed else 1)
    started = time.monotonic()
    with pytest.raises(BuildError, match=problem) as caught:
        run(found, wheel(SMALL))
    assert type(caught.value) is kind
    assert caught.value.exit_code == 1
    assert NAME in caught.value.message
    assert "127.0.0.1" in caught.value.message
    assert "\x1b" not in caught.value.message
    if kind is ChangedFileError:
        assert wheel(SMALL).sha256 in caught.value.message
        assert "envbuilder lock" in caught.value.hint
    assert time.monotonic() - started < 10
    left = [p for p in found.store_dir.rglob("*") if p.is_file() and p.name != wheel(SMALL).sha256]
    assert {p.suffix for p in left if p.name != files.MARKER} <= {".lock"}
    faulty.fault = ""
    assert run(found, wheel(SMALL)) == 1
    assert Store(found.store_dir).path(wheel(SMALL).sha256).read_bytes() == SMALL


def test_wrong_bytes_are_requested_once_more_and_not_for_ever(
    found: Settings, faulty: FaultyServer
) -> None:
    faulty.fault = "other bytes each time"
    with pytest.raises(WrongHashError):
        run(found, wheel(SMALL))
    assert len(faulty.requests) == 2


def test_other_bytes_after_a_resume_are_replaced(found: Settings, faulty: FaultyServer) -> None:
    faulty.fault = "other bytes after a resume"
    with pytest.raises(BuildError):
        run(found, wheel(SMALL))
    faulty.fault = ""
    run(found, wheel(SMALL))
    assert Store(found.store_dir).path(wheel(SMALL).sha256).read_bytes() == SMALL


def test_a_file_is_read_only_as_far_as_the_lock_says(found: Settings, faulty: FaultyServer) -> None:
    faulty.fault = "endless body"
    with pytest.raises(ChangedFileError):
        run(found, wheel(SMALL))
    assert len(faulty.requests) == 1
    written = (p.stat().st_size for p in found.store_dir.rglob("*") if p.is_file())
    assert max(written) < 1000


def test_a_failure_does_not_wait_for_silent_servers(
    found: Settings, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sockets are shut down: their time-outs are not waited for."""
    monkeypatch.setattr(fetch, "open_session", http_transport.Session)
    faulty.fault = "silent"
    silent = wheel(b"silent")
    missing = wheel(b"missing")
    monkeypatch.setattr(
        fetch,
        "_locate",
        lambda *_: {silent.sha256: (f"{faulty.url}/{NAME}",), missing.sha256: ()},
    )
    started = time.monotonic()
    with pytest.raises(BuildError, match="does not list it"):
        run(found, silent, missing)
    assert time.monotonic() - started < 10
