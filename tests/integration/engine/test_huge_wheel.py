"""A wheel as large as torch's for ROCm (6.2 GB): killed, resumed, and the same image each time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.profiles import lock as lockfile, profile as profiles
from tests.conftest import missing
from tests.integration.conftest import offer_of
from tests.support import huge_wheel, index_server
from tests.support.projects import lay_profile

pytestmark = pytest.mark.soak

PROFILE = f"""\
extends: _cpu
description: A wheel as large as torch's for ROCm
platforms: [linux/amd64]
requirements: [setuptools==80.9.0, torch=={huge_wheel.VERSION}]
system_packages: []
preload: []
expects: {{version: {huge_wheel.VERSION}}}
"""
MOST_MEMORY = 1 << 30


@pytest.fixture(params=[1_500_000_000, 6_227_849_000], ids=["1.5 GB", "6.2 GB"])
def wheel(request: pytest.FixtureRequest, tmp_path: Path) -> lockfile.File:
    """The wheel, which takes no room until it is downloaded."""
    size: int = request.param
    for folder in (tmp_path, Path("/var/lib/docker")):
        while not folder.exists():
            folder = folder.parent  # noqa: PLW2901
        if shutil.disk_usage(folder).free < 5 * size:
            missing("engine", f"{folder} has less than {5 * size >> 30} GiB free")
    return huge_wheel.write(tmp_path, size)


@pytest.fixture
def huge(wheel: lockfile.File, tiny_lock: str, tmp_path: Path) -> None:
    """A project with `huge`: the packages of `tiny`, and the wheel."""
    lay_profile(tmp_path, "huge", PROFILE)
    folders = (tmp_path / "profiles", resources.profiles_dir())
    locks = tmp_path / "profiles/locks"
    tiny = locks / "tiny.json"
    tiny.write_text(tiny_lock)
    lock = lockfile.load(tiny)
    targets = tuple(replace(t, files=(*t.files, wheel)) for t in lock.targets if t.python == "3.11")
    inputs = lockfile.inputs_digest(profiles.load("huge", folders))
    (locks / "huge.json").write_text(
        lockfile.dump(replace(lock, profile="huge", inputs=inputs, targets=targets))
    )


class Builder:
    """Builds of `huge` with a cache of their own; the memory that each process took."""

    def __init__(
        self, folder: Path, environment: dict[str, str], base: str, url: str, requests: list[str]
    ) -> None:
        self.requests = requests
        self.cache = folder / "cache"
        self._folder = folder
        self._base = base
        self.peaks: dict[str, int] = {}
        self._environment = {
            **os.environ, **environment, "ENVBUILDER_CACHE_DIR": str(self.cache),
            "UV_DEFAULT_INDEX": url, "NO_PROXY": "127.0.0.1", "PIP_CONFIG_FILE": os.devnull,
        }  # fmt: skip

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "envbuilder", "build", "--profile", "huge", "--json"]
        argv += ["--python-version", "3.11", "--base-image", self._base, *options]
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            return subprocess.Popen(
                argv, env=self._environment, cwd=self._folder, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def killed(self, when: Callable[[], bool], *options: str) -> None:
        """Kill a build, and all that it started, as soon as something is true."""
        child = self.start(*options)
        while not when():
            assert child.poll() is None, f"too fast: {(self._folder / 'err').read_text()}"
            time.sleep(0.02)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def run(self, title: str, *options: str) -> dict[str, Any]:
        began = time.monotonic()
        child = self.start(*options)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, (self._folder / "err").read_text()
        self.peaks[title] = peak = used.ru_maxrss << 10
        print(f"{title}: {time.monotonic() - began:.0f} s, peak {peak >> 20} MiB")
        result: dict[str, Any] = json.loads((self._folder / "out").read_text())
        return result


@pytest.fixture
def builder(
    huge: None,
    wheel: lockfile.File,
    session_environment: dict[str, str],
    test_cache: Path,
    base_image: str,
    docker_client: Any,
    tmp_path: Path,
) -> Iterator[Builder]:
    """The others' files are in the store already."""
    del huge
    store = tmp_path / "cache/store"
    shutil.copytree(test_cache / "store", store, ignore=_only_small, copy_function=os.link)
    requests: list[str] = []
    with index_server.serve(
        [offer_of(wheel, tmp_path / huge_wheel.NAME)], requests=requests
    ) as url:
        yield Builder(tmp_path, session_environment, base_image, url, requests)
    for image in docker_client.images.list("envbuilder/huge"):
        docker_client.images.remove(image.id, force=True)
    shutil.rmtree(tmp_path / "cache")
    forget_large_steps()


def forget_large_steps() -> None:
    """Remove the gigabytes that BuildKit keeps of the build: its copy of the wheel, and files."""
    kept = subprocess.run(
        ["docker", "buildx", "du", "--verbose"], capture_output=True, text=True, check=True
    )
    records = [
        dict(re.findall(r"^([A-Z][A-Za-z ]*):\s+(.*)$", record, re.MULTILINE))
        for record in kept.stdout.split("\n\n")
    ]
    large = [r["ID"] for r in records if r.get("Size", "").endswith("GB") and "wheels" in str(r)]
    for name in large:  # what is built on a step goes first
        large += [r["ID"] for r in records if name in r.get("Parent", "")]
    for name in reversed(large):
        prune = ["docker", "buildx", "prune", "--all", "--force", "--filter", f"id={name}"]
        subprocess.run(prune, check=True, capture_output=True)


def _only_small(folder: str, names: list[str]) -> list[str]:
    paths = [Path(folder, name) for name in names]
    return [p.name for p in paths if p.is_file() and p.stat().st_size > 100 << 20]


def test_it_is_built_in_little_memory_and_resumed_after_a_kill(
    builder: Builder, wheel: lockfile.File, tmp_path: Path, docker_client: Any
) -> None:
    part = builder.cache / "store/partial" / wheel.sha256
    builder.killed(
        lambda: part.exists() and part.stat().st_size > wheel.size // 3,
        "--output", "oci:image",
    )  # fmt: skip
    arrived = part.stat().st_size

    def layers() -> dict[str, int]:
        blobs = (builder.cache / "layers/blobs/sha256").glob("*")
        return {p.name: p.stat().st_mtime_ns for p in blobs if len(p.name) == 64}

    builder.killed(lambda: len(layers()) > 4, "--output", "oci:image")
    assert any(r.endswith(f"bytes={arrived}-") for r in builder.requests), "resumed"
    before = layers()
    first = builder.run("layers, to a folder, resumed", "--output", "oci:image")
    assert before.items() <= layers().items(), "finished layers are not made again"

    second = builder.run(
        "layers, to the engine, nothing reused", "--builder", "layers", "--rebuild"
    )
    assert second["artifact"]["digest"] == first["artifact"]["digest"]
    require_usable(docker_client, second["artifact"]["ref"], wheel)
    docker_client.images.remove(second["artifact"]["ref"], force=True)

    stored = next((builder.cache / "store/sha256").glob(f"*/{wheel.sha256}"))
    if shutil.which("fallocate"):  # room for the engine's copies
        subprocess.run(["fallocate", "--dig-holes", stored], check=True)
    third = builder.run("buildkit, to the engine", "--builder", "buildkit")
    require_usable(docker_client, third["artifact"]["ref"], wheel)
    assert max(builder.peaks.values()) < MOST_MEMORY, builder.peaks


SCRIPT = """\
import csv, os, sys, torch
folder = os.path.dirname(os.path.dirname(torch.__file__))
(info,) = [n for n in os.listdir(folder) if n.startswith("torch-") and n.endswith(".dist-info")]
rows = list(csv.reader(open(os.path.join(folder, info, "RECORD"))))
sizes = {path: int(size) for path, _, size in rows if size}
assert all(os.path.getsize(os.path.join(folder, p)) == s for p, s in sizes.items())
print(len(sizes), sum(sizes.values()))
"""


def require_usable(client: Any, ref: str, wheel: lockfile.File) -> None:
    """Fail unless every file of the wheel is there with its size."""
    said = client.containers.run(ref, ["python", "-c", SCRIPT], remove=True, network_mode="none")
    count, total = map(int, said.split())
    assert count > 300
    assert total > wheel.size - (8 << 20)
