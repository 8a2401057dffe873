"""Detection on the machine itself: what the engine says, no process unless asked, a container."""

from __future__ import annotations

import json
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

import msgspec
import pytest

import envbuilder
from envbuilder.core import process
from envbuilder.host import model as host, probe
from tests.conftest import ran, succeeded

# Python itself reports these, whoever starts a program and by which module.
WATCHED = """\
import json, sys
started = []
STARTS = {
    "subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
    "os.startfile", "os.system", "pty.spawn",
}
sys.addaudithook(lambda event, _: started.append(event) if event in STARTS else None)
"""
DETECT = """\
from envbuilder import cli
try:
    cli.main(["detect", "--json"])
except SystemExit as ended:
    assert not ended.code, ended.code
"""
FULL = """\
from envbuilder.host import probe
probe.host(full=True)
"""
PROBE = """\
import sys
sys.path[:0] = ["/envbuilder", "/packages"]
import msgspec
from envbuilder.host import probe
sys.stdout.buffer.write(msgspec.json.encode(probe.host()))
"""


def started(code: str, environment: dict[str, str]) -> list[str]:
    """Which events of a starting process came while `code` ran."""
    done = succeeded(
        ran(
            [sys.executable, "-c", f"{WATCHED}{code}print(json.dumps(started), file=sys.stderr)"],
            env={**os.environ, **environment},
        )
    )
    events: list[str] = json.loads(done.stderr.splitlines()[-1])
    return events


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS answers only through sysctl")
def test_detect_starts_no_process(session_environment: dict[str, str]) -> None:
    assert started(DETECT, session_environment) == []


@pytest.mark.engine
def test_full_detection_starts_some(docker_client: Any) -> None:
    assert "subprocess.Popen" in started(FULL, {})


@pytest.mark.engine
def test_the_engine_and_buildx_are_found(docker_client: Any) -> None:
    running = docker_client.version()["Version"]
    found = probe.host().containers
    usable = [e for e in found.engines if e.state == "usable" and e.name == "docker"]
    assert running in [e.version for e in usable]
    assert found.buildx is True
    assert found.buildx_version is None
    full = probe.host(full=True).containers
    told = process.run(["docker", "buildx", "version"]).stdout
    assert full.buildx_version
    assert full.buildx_version in told
    assert full.engines == found.engines


@pytest.mark.engine
def test_a_container_sees_its_own_limits(docker_client: Any, base_image: str) -> None:
    wanted = ".".join(platform.python_version_tuple()[:2])
    ask = ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    inside = docker_client.containers.run(base_image, ask, remove=True, network_mode="none")
    if inside.decode().strip() != wanted:
        pytest.skip(f"the image's Python cannot load msgspec as built for {wanted}")
    volumes = {
        str(Path(envbuilder.__file__).parents[1]): {"bind": "/envbuilder", "mode": "ro"},
        sysconfig.get_path("platlib"): {"bind": "/packages", "mode": "ro"},
    }
    written = docker_client.containers.run(
        base_image,
        ["python3", "-B", "-c", PROBE],
        remove=True,
        network_mode="none",
        volumes=volumes,
        nano_cpus=1_500_000_000,
        mem_limit="2g",
        shm_size="128m",
    )
    found = msgspec.json.decode(written, type=host.Host)
    assert found.container is True
    assert found.cpu.quota == 1.5
    assert found.memory.limit_bytes == 2 << 30
    assert found.memory.shm_bytes == 128 << 20
    assert found.containers.engines == ()
    assert found.containers.buildx is False
