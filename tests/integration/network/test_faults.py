"""Bad input and bad luck with the whole command line: message, exit code, nothing left behind."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli, begin
from tests.support.folders import read_json
from tests.support.http_server import Quiet, serving

BUILD = ("build", "--profile", "tiny", "--backend", "venv", "--json")


def edit(lock: Path, change: Any) -> None:
    """Change a lock's data."""
    data = read_json(lock)
    change(data)
    lock.write_text(json.dumps(data))


def own_folders(tmp_path: Path) -> dict[str, str]:
    return {
        "ENVBUILDER_CACHE_DIR": str(tmp_path / "cache"),
        "ENVBUILDER_DATA_DIR": str(tmp_path / "data"),
    }


def test_a_wrong_hash_is_1_and_nothing_is_kept(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    wrong = "0" * 64

    def change(data: dict[str, Any]) -> None:
        for target in data["targets"]:
            for file in target["files"]:
                if file["name"] == "setuptools":
                    file["sha256"] = wrong

    edit(tiny, change)
    assert "setuptools" in exited(1, cli(*BUILD, environment=own_folders(tmp_path))).stderr
    assert not list((tmp_path / "cache/store").glob(f"sha256/*/{wrong}"))
    assert not list((tmp_path / "data").rglob("bin"))


@pytest.mark.slow
def test_a_tampered_wheel_is_refused(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """An index that sends other bytes under the right name."""
    folders = own_folders(tmp_path)
    done = succeeded(cli(*BUILD, environment=folders))
    store = tmp_path / "cache/store/sha256"
    name = next(f for f in first_target(tiny)["files"] if f["name"] == "setuptools")
    path = store / name["sha256"][:2] / name["sha256"]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"x")
    done = exited(1, cli(*BUILD, "--rebuild", environment=folders))
    assert "damaged in the store" in done.stderr
    done = succeeded(cli(*BUILD, "--rebuild", environment=folders))


def first_target(lock: Path) -> dict[str, Any]:
    targets = read_json(lock)["targets"]
    found: dict[str, Any] = next(t for t in targets if t["python"] == "3.11")
    return found


class Slow(Quiet):
    """Serves one wheel, very slowly, and honours ranges."""

    content = b""
    name = ""
    pause = 0.05
    ranges: list[str] = []  # noqa: RUF012 (one server a test)

    def do_GET(self) -> None:
        if self.path.endswith("/"):
            digest = hashlib.sha256(self.content).hexdigest()
            page = (
                f'<a href="/files/{self.name}#sha256={digest}"'
                f' data-core-metadata="true">{self.name}</a>'
            )
            self.whole(page.encode())
            return
        if self.path.endswith(".metadata"):
            with zipfile.ZipFile(io.BytesIO(self.content)) as wheel:
                member = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
                self.whole(wheel.read(member))
            return
        asked = self.headers.get("Range", "")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0) if asked else 0
        body = self.content[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        if asked:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
            )
        self.end_headers()
        try:
            for i in range(0, len(body), 1 << 15):
                self.wfile.write(body[i : i + (1 << 15)])
                time.sleep(self.pause)
        except OSError:
            pass

    def whole(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def slow_index(cli: Cli, tiny: Path, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """An index that has only the wheel of `tiny`, slowly; and a store that has all but that."""
    folders = own_folders(tmp_path)
    succeeded(cli(*BUILD, environment=folders))
    file = next(f for f in first_target(tiny)["files"] if f["name"] == "setuptools")
    path = tmp_path / "cache/store/sha256" / file["sha256"][:2] / file["sha256"]
    Slow.content = path.read_bytes()
    Slow.name = file["file"]
    Slow.ranges = []
    path.unlink()
    shutil.rmtree(tmp_path / "data")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    clean = {"UV_DEFAULT_INDEX": url, "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}
    with serving(server):
        yield file["sha256"], {**folders, **clean}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.slow
def test_killed_in_the_middle_of_a_download(
    number: signal.Signals,
    slow_index: tuple[str, dict[str, str]],
    cli: Cli,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    sha256, environment = slow_index
    child = begin(BUILD, {**session_environment, **environment}, tmp_path)
    part = tmp_path / "cache/store/partial" / sha256
    end = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 0):
        if time.monotonic() > end or child.poll() is not None:
            child.kill()
            pytest.fail(f"the download did not begin: {child.communicate()[1]}")
        time.sleep(0.02)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == (130 if number == signal.SIGINT else -9), said
    assert not list((tmp_path / "cache/store").glob(f"sha256/*/{sha256}"))
    Slow.pause = 0.0
    try:
        done = cli(*BUILD, environment=environment)
    finally:
        Slow.pause = 0.05
    assert done.returncode == 0, done.stderr
    assert Slow.ranges[-1].startswith("bytes="), "the second try continues the first"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_1_and_leaves_nothing(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine cannot mount a tmpfs")
    try:
        environment = {
            "ENVBUILDER_CACHE_DIR": str(small / "cache"),
            "ENVBUILDER_DATA_DIR": str(small / "data"),
        }
        done = exited(1, cli(*BUILD, environment=environment))
        assert "space" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list((small / "cache").glob("store/sha256/*/*"))[2:]
        assert not list(small.glob("data/envs/*/bin"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
