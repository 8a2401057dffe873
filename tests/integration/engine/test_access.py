"""Ports, volumes and variables that users give a command, asked inside and from outside."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.builds.backends import container
from tests.conftest import ran, succeeded
from tests.integration.conftest import begin, start
from tests.integration.engine.conftest import OTHER_USER

ASK = """\
import json, os, pathlib
pathlib.Path("/data/written").write_text("by the command")
tried = []
for folder in ("/ro", "/models"):
    try:
        pathlib.Path(folder, "x").write_text("x")
    except OSError as error:
        tried.append(type(error).__name__)
    else:
        tried.append("written")
print(json.dumps({
    "tried": tried, "ro": os.listdir("/ro"), "uid": os.getuid(),
    "variables": {n: os.environ.get(n) for n in ("A", "TOKEN", "LINES", "OTHER")},
}))
"""
SERVE = """\
import http.server, pathlib
pathlib.Path("page").write_text("from inside")
http.server.ThreadingHTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


class Bench:
    """The image `tiny` in an engine."""

    def __init__(self, client: str, base: str, variables: dict[str, str], folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.words = ("run", "--profile", "tiny", "--backend", "docker")
        self.variables = {**variables, "ENVBUILDER_BASE_IMAGE": base}

    def remove(self, volume: str) -> None:
        command = [self.client, "volume", "rm", "--force", volume]
        subprocess.run(command, capture_output=True, check=False)


@pytest.fixture
def bench(
    each_engine: tuple[str, str, dict[str, str]],
    session_environment: dict[str, str],
    tiny: Path,
    tmp_path: Path,
) -> Bench:
    client, base, variables = each_engine
    return Bench(client, base, {**session_environment, **variables}, tmp_path)


def test_folders_volumes_and_variables_are_there(bench: Bench) -> None:
    (bench.folder / "my data, ä").mkdir()
    (bench.folder / "fixed").mkdir()
    (bench.folder / "fixed/file").touch()
    volume = f"envbuilder-test-{secrets.token_hex(6)}"
    secret = "one line\nand 'another'"
    options = (
        "-v",
        "./my data, ä:/data",
        "-v",
        "./fixed:/ro:ro",
        "-v",
        f"{volume}:/models",
        "-e",
        "A=b c",
        "-e",
        "TOKEN",
        "-e",
        "LINES",
    )
    variables = {**bench.variables, "TOKEN": "secret", "LINES": secret, "OTHER": "mine"}
    try:
        done = start(
            (*bench.words, *options, "--", "python", "-c", ASK), variables, cwd=bench.folder
        )
    finally:
        bench.remove(volume)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["variables"] == {"A": "b c", "TOKEN": "secret", "LINES": secret, "OTHER": None}
    assert answer["ro"] == ["file"]
    assert answer["tried"] == ["OSError", "written"], "a new volume is its user's"
    written = bench.folder / "my data, ä/written"
    assert written.read_text() == "by the command"
    assert written.stat().st_uid == os.getuid() == answer["uid"]
    assert "and /tmp are writable" in done.stderr


KEEP = """\
import os, pathlib, shutil
for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME"):
    folder = pathlib.Path(os.environ[name], "%s")
    print((folder / "file").exists(), end=" ")
    if folder.exists():
        shutil.rmtree(folder)
    else:
        folder.mkdir(parents=True)
        (folder / "file").touch()
print(os.environ["HF_HOME"], os.stat("/tmp/.cache").st_uid == os.getuid())
"""


@pytest.mark.slow
def test_what_is_downloaded_is_there_the_next_time(bench: Bench) -> None:
    code = KEEP % f"test-{secrets.token_hex(6)}"
    for present in ("False", "True"):
        done = succeeded(
            start((*bench.words, "--", "python", "-c", code), bench.variables, cwd=bench.folder)
        )
        expected = f"{present} {present} {present} /tmp/.cache/huggingface True\n"
        assert done.stdout == expected
    listed = start(("clean", "--dry-run", "--volumes"), bench.variables, cwd=bench.folder)
    (ours,) = container.with_cache([], os.getuid(), bench.folder)
    assert f"would remove {ours.source}\n" in listed.stdout
    # Another user's command, of a project that is not this user's, has a cache of its own.
    if os.getuid() == 0:
        os.chown(bench.folder, OTHER_USER, OTHER_USER)
        variables = {**bench.variables, "ENVBUILDER_TRUSTED_FOLDERS": str(bench.folder)}
        try:
            words = (*bench.words, "--", "python", "-c", code)
            done = start(words, variables, cwd=bench.folder)
        finally:
            os.chown(bench.folder, 0, 0)
        assert done.stdout.startswith("False False False"), done.stderr
        assert done.stdout.endswith("True\n")


def test_the_project_is_at_its_own_path(bench: Bench) -> None:
    below = bench.folder / "notebooks, 1:2/of mine"
    below.mkdir(parents=True)
    (bench.folder / "data").mkdir()
    (bench.folder / "data/file").write_text("of the project")
    code = (
        "import os; print(os.getcwd()); print(open('../../data/file').read());"
        "print(os.stat('.').st_uid == os.getuid()); open('written', 'w')"
    )
    done = succeeded(start((*bench.words, "--", "python", "-c", code), bench.variables, cwd=below))
    assert done.stdout.splitlines() == [str(below), "of the project", "True"]
    assert (below / "written").stat().st_uid == os.getuid()
    assert f"only {bench.folder} and /tmp are writable" in done.stderr


def test_a_project_that_would_cover_the_image_is_elsewhere(bench: Bench) -> None:
    """Such as one below /usr, which a test cannot make."""
    code = (
        "import os, sys; from envbuilder.builds import access; from envbuilder.cli import main;"
        "access.covered = lambda path: '/srv'; main(sys.argv[1:])"
    )
    done = ran(
        [sys.executable, "-c", code, *bench.words, "--", "pwd"],
        env={**os.environ, **bench.variables},
        cwd=bench.folder,
    )
    assert (done.returncode, done.stdout) == (0, "/work\n"), done.stderr
    assert f"{bench.folder} is at /work: at its own path it would cover /srv" in done.stderr


@contextlib.contextmanager
def running(bench: Bench, *options: str) -> Iterator[subprocess.Popen[str]]:
    child = begin((*bench.words, *options), bench.variables, bench.folder)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL if child.poll() is None else 0)
        child.communicate()


def test_a_port_is_reachable_here_and_from_nowhere_else(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = "-e", "PYTHONUNBUFFERED=1", "--", "timeout", "-s", "INT", "60", "python", "-c", SERVE
    with running(bench, "-p", f"{port}:8000", *stop) as child:
        until = time.monotonic() + 60
        page = ""
        while not page and time.monotonic() < until and child.poll() is None:
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{port}/page"
                page = urllib.request.urlopen(url, timeout=5).read().decode()
            time.sleep(0.2)
        assert page == "from inside"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((_own_address(), port), timeout=5)
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def _own_address() -> str:
    """An address of this machine that is not of its loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other address")
        return str(probe.getsockname()[0])
