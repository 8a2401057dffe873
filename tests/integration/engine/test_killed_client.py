"""A verification's container ends with its client, even if that one is killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.engine.conftest import PODMAN_BASE

CLIENT = """\
import sys
from envbuilder.containers import inside
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.container import Container, Limits
code = "import sys, time; print('up', flush=True); time.sleep(float(sys.argv[1])); sys.exit(7)"
with connection.connect() as engine:
    image = engine.image(sys.argv[1])
    container = Container(
        image=image.id, user="1000:1000", limits=Limits(), is_held=True, home="/home/user",
        entrypoint=inside.guarded(("python3", "-I"), ("python3", "-c", code)),
        arguments=(sys.argv[2], sys.argv[3]),
    )
    print(engine.run(container, lambda line: print(line, flush=True), 600).returncode)
"""


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A base image, and the variables with which its engine is used."""
    if request.param == "docker":
        request.getfixturevalue("docker_client")
        return request.getfixturevalue("base_image"), {}
    return PODMAN_BASE, request.getfixturevalue("alone")


def running(token: str) -> list[bytes]:
    """The processes of this machine whose command line has a word."""
    lines = list[bytes]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return [line for line in lines if token.encode() in line]


def start(engine: tuple[str, dict[str, str]], seconds: str, token: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, engine[0], seconds, token],
        env={**os.environ, **engine[1]},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_ends_with_a_client_that_is_killed(engine: tuple[str, dict[str, str]]) -> None:
    token = secrets.token_hex(8)
    with start(engine, "600", token) as client:
        assert client.stdout
        assert client.stdout.readline() == "up\n"
        assert len(running(token)) >= 3, "the client, the guard and the command"
        client.kill()
    deadline = time.monotonic() + 30
    while running(token) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(token) == []
    words = ["docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for ended in (line.split()[0] for line in listed.splitlines() if token in line):
        subprocess.run(["docker", "rm", ended], capture_output=True, check=True)


def test_it_ends_by_itself_with_the_commands_code(engine: tuple[str, dict[str, str]]) -> None:
    with start(engine, "0.1", secrets.token_hex(8)) as client:
        assert client.communicate()[0] == "up\n7\n"
