"""The builder `layers` with real wheels: the Dockerfile's image, made without an engine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.oci import layer, rootfs
from envbuilder.containers.oci.layout import Layout
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile
from tests.conftest import missing, succeeded
from tests.integration.conftest import Cli, lay_tiny, start
from tests.support import image_files
from tests.support.arm_host import arm_host
from tests.support.images import BASE, image as small_image

OWN = {"dev", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", ".dockerenv"}
"""What every container has besides its image."""
NOWHERE = {"DOCKER_HOST": "unix:///nowhere.sock", "PATH": "/nowhere"}
ARM = """\
extends: _cpu
description: A package with a compiled part, for a platform that this machine may not have
platforms: [linux/amd64, linux/arm64]
requirements: [markupsafe==3.0.2, setuptools==80.9.0]
system_packages: []
preload: []
bytecode: false
expects:
  version: 2.13.0+cpu
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A base image on disk, as small as can be."""
    return f"oci:{small_image(tmp_path / 'base').folder}"


# --- the same as the Dockerfile


class Pieces(io.RawIOBase):
    """What an engine sends, as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
        data = self._held[: len(buffer)]
        self._held = self._held[len(data) :]
        buffer[: len(data)] = data
        return len(data)


def files(client: Any, ref: str) -> dict[str, tuple[Any, ...]]:
    """Every path of an image: kind, mode, owner, time and content."""
    found = {}
    container = client.containers.create(ref, ["true"])
    try:
        stream = io.BufferedReader(Pieces(container.export()))
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for entry in tar:
                if entry.name.rstrip("/") in OWN or entry.name.startswith("dev/"):
                    continue
                content = entry.linkname
                if entry.isreg():
                    data = tar.extractfile(entry)
                    content = hashlib.file_digest(data, "sha256").hexdigest()  # type: ignore[arg-type]
                # The container's own files above change the time of their folder.
                time = None if entry.name == "etc" else int(entry.mtime)
                about = (entry.type, entry.mode, entry.uid, entry.gid, time, content)
                found[entry.name] = about
    finally:
        container.remove(force=True)
    return found


def built(cli: Cli, profile: str, base: str, builder: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        succeeded(
            cli(
                "build",
                "--profile",
                profile,
                "--backend",
                "docker",
                "--base-image",
                base,
                "--builder",
                builder,
                "--json",
            )
        ).stdout
    )
    assert result["builder"] == builder
    return result


def require_equal(cli: Cli, client: Any, profile: str, base: str, *but: str) -> None:
    refs = [built(cli, profile, base, b)["artifact"]["ref"] for b in ("buildkit", "layers")]
    ours, theirs = (files(client, ref) for ref in refs)
    different = {p for p in ours.keys() | theirs.keys() if ours.get(p) != theirs.get(p)}
    assert different == set(but)
    assert any(path.startswith("opt/env/") and path.endswith(".cpython-311.pyc") for path in ours)
    one, other = (client.images.get(ref).attrs["Config"] for ref in refs)
    label = "io.envbuilder.fingerprint"
    assert one["Labels"].pop(label) != other["Labels"].pop(label)
    assert {k: v for k, v in one.items() if v} == {k: v for k, v in other.items() if v}
    names = [tag for there in client.images.list() for tag in there.tags]
    assert not [n for n in names if n.startswith("envbuilder/ahead:")], "left of loading it"


@pytest.mark.soak
@pytest.mark.engine
def test_every_file_is_the_dockerfiles(
    cli: Cli, base_image: str, docker_client: Any, tiny: Path
) -> None:
    require_equal(cli, docker_client, "tiny", base_image)


@pytest.mark.soak
@pytest.mark.engine
def test_every_file_of_cpu_is_the_dockerfiles(
    cli: Cli, base_image: str, docker_client: Any
) -> None:
    """Its packages are unpacked: the loader's cache stays as it was, which it can."""
    require_equal(cli, docker_client, "cpu", base_image, "etc/ld.so.cache")


@pytest.mark.slow
@pytest.mark.engine
def test_the_engine_gets_lower_layers_while_others_are_made(
    cli: Cli, base_image: str, docker_client: Any
) -> None:
    if "containerd" not in str(docker_client.info()["DriverStatus"]):
        pytest.skip("only the containerd store keeps layers as they came")
    began = time.time()
    done = succeeded(
        cli(
            "build",
            "--profile",
            "cpu",
            "--backend",
            "docker",
            "--base-image",
            base_image,
            "--builder",
            "layers",
            "--rebuild",
            "--json",
        )
    )
    ahead = f"envbuilder/ahead:{json.loads(done.stdout)['fingerprint'][:12]}"
    events = docker_client.events(
        since=int(began), until=int(time.time()) + 1, filters={"type": "image"}, decode=True
    )
    of_it = [e["Action"] for e in events if ahead in e["Actor"]["Attributes"].get("name", "")]
    assert "untag" in of_it, "it had the name, and lost it"
    assert ahead not in [tag for image in docker_client.images.list() for tag in image.tags]


@pytest.mark.engine
@pytest.mark.soak
def test_every_file_of_zendnn_is_the_dockerfiles(
    cli: Cli, base_image: str, docker_client: Any
) -> None:
    """Its packages' scripts ran in the engine."""
    require_equal(cli, docker_client, "zendnn", base_image)


@pytest.mark.engine
@pytest.mark.soak
def test_what_zendnn_shares_with_cpu_is_unpacked_once(
    cli: Cli, base_image: str, docker_client: Any
) -> None:
    """An engine keeps a layer once for all images in which everything below it is the same."""
    layers = [
        docker_client.images.get(built(cli, p, base_image, "layers")["artifact"]["ref"])
        .attrs["RootFS"]["Layers"]
        for p in ("cpu", "zendnn")
    ]  # fmt: skip
    below = len(docker_client.images.get(base_image).attrs["RootFS"]["Layers"])
    torch = slice(0, below + 1)
    assert layers[0][torch] == layers[1][torch]
    assert layers[0][below + 1 :] != layers[1][below + 1 :]


@pytest.mark.engine
def test_an_image_in_the_engine_is_reused_and_runs(
    cli: Cli, base_image: str, docker_client: Any, tiny: Path
) -> None:
    first = built(cli, "tiny", base_image, "layers")
    again = built(cli, "tiny", base_image, "layers")
    assert again["status"] == "reused"
    assert again["artifact"] == first["artifact"]
    said = docker_client.containers.run(
        first["artifact"]["ref"],
        ["python", "-c", "import os, setuptools; print(os.getuid(), setuptools.__version__)"],
        remove=True,
        network_mode="none",
    )
    assert said == b"1000 80.9.0\n"


# --- without an engine


def outputs(
    cli: Cli,
    base: str,
    target: str,
    *options: str,
    profile: str = "tiny",
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        succeeded(
            cli(
                "build",
                "--profile",
                profile,
                "--base-image",
                base,
                "--output",
                target,
                "--json",
                *options,
                environment={**NOWHERE, **(environment or {})},
            )
        ).stdout
    )
    return result


def test_an_archive_needs_no_engine_and_is_the_same_wherever_it_is_made(
    cli: Cli, base: str, tiny: Path, tmp_path: Path, test_cache: Path
) -> None:
    first = outputs(cli, base, "one.tar")
    assert first["artifact"]["kind"] == "archive"
    # Another cache with copies of the store's files, another time zone, language and umask.
    lock = lockfile.load(tiny)
    target = lockfile.select(lock, "linux/amd64", "3.11")
    there = Store(tmp_path / "elsewhere/store")
    here = Store(test_cache / "store")
    for file in (*target.files, lock.tool("linux/amd64")):
        there.path(file.sha256).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(here.path(file.sha256), there.path(file.sha256))
    other = {
        "ENVBUILDER_CACHE_DIR": str(tmp_path / "elsewhere"), "TZ": "Asia/Tokyo", "LC_ALL": "C",
        "HOME": str(tmp_path),
    }  # fmt: skip
    before = os.umask(0o077)
    try:
        second = outputs(cli, base, "two.tar", environment=other)
    finally:
        os.umask(before)
    assert second["status"] == "built"
    assert second["artifact"]["digest"] == first["artifact"]["digest"]
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert outputs(cli, base, "one.tar")["status"] == "reused"
    (tmp_path / "one.tar").write_bytes((tmp_path / "one.tar").read_bytes()[:-100_000])
    assert outputs(cli, base, "one.tar")["status"] == "built"
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_no_root_is_needed(cli: Cli, base: str, tiny: Path, tmp_path: Path) -> None:
    """Owners and modes in the image are stated, never those of the files of this machine."""
    outputs(cli, base, "oci:image")
    layout = Layout.open(tmp_path / "image")
    manifest = layout.manifest("linux/amd64")
    root = rootfs.read(layout, manifest)
    assert (root.entries["work"].uid, root.entries["opt/env/bin/python"].uid) == (1000, 0)
    times = {int(m.mtime) for d in manifest.layers[1:] for m, _ in layer.members(layout.checked(d))}
    target = lockfile.select(lockfile.load(tiny), "linux/amd64", "3.11")
    assert max(times) == target.base.epoch


@pytest.mark.slow
def test_an_image_for_another_architecture_needs_no_emulation(
    cli: Cli, session_environment: dict[str, str], tmp_path: Path
) -> None:
    lay_tiny(tmp_path)
    (tmp_path / "profiles/arm.yaml").write_text(ARM)
    done = start(("lock", "--profile", "arm"), session_environment, cwd=tmp_path)
    if done.returncode != 0:
        missing("network", f"the package index cannot be asked: {done.stderr[-400:]}")
    base = small_image(tmp_path / "base", (BASE,), "arm64")
    host = arm_host(session_environment, tmp_path)
    digests = set()
    for name in ("one", "two"):
        done = succeeded(
            cli(
                "build",
                "--profile",
                "arm",
                "--target-host",
                str(host),
                "--base-image",
                f"oci:{base.folder}",
                "--output",
                f"oci:{name}",
                "--json",
                "--rebuild",
                environment=NOWHERE,
            )
        )
        digests.add(json.loads(done.stdout)["artifact"]["digest"])
    assert len(digests) == 1
    layout = Layout.open(tmp_path / "one")
    machines = set()
    for blob in layout.manifest("linux/arm64").layers[1:]:
        for member, tar in layer.members(layout.checked(blob)):
            if member.name.endswith(".so"):
                assert "aarch64-linux-gnu" in member.name
                machines.add(int.from_bytes(tar.content(member)[18:20], "little"))
    assert machines == {image_files.AARCH64}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "kills"),
    [
        ("tiny", 4),
        pytest.param("tiny", 50, marks=pytest.mark.soak),
        pytest.param("cpu", 5, marks=pytest.mark.soak),
    ],
)
def test_killed_at_any_point_the_next_build_is_the_same(
    profile: str,
    kills: int,
    cli: Cli,
    base: str,
    tiny: Path,
    tmp_path: Path,
    test_cache: Path,
    session_environment: dict[str, str],
) -> None:
    wanted = outputs(cli, base, "whole.tar", profile=profile)["artifact"]["digest"]
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "store").symlink_to(test_cache / "store")
    environment = {**os.environ, **session_environment, "ENVBUILDER_CACHE_DIR": str(cache)}
    command = [
        sys.executable,
        "-m",
        "envbuilder",
        "build",
        "--profile",
        profile,
        "--rebuild",
        "--base-image",
        base,
        "--output",
        "killed.tar",
    ]
    began = time.monotonic()
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
    seconds = time.monotonic() - began
    (tmp_path / "killed.tar").unlink()
    chance = random.Random(5)
    ended = 0
    for _ in range(kills):
        began = time.monotonic()
        child = subprocess.Popen(
            command, env=environment, cwd=tmp_path, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            child.wait(timeout=chance.uniform(0.05, 0.95) * seconds)
            ended += 1
            seconds = time.monotonic() - began  # less is done beside it now
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        left = tmp_path / "killed.tar"
        if left.exists():
            assert left.read_bytes() == (tmp_path / "whole.tar").read_bytes()
            left.unlink()
        again = {"ENVBUILDER_CACHE_DIR": str(cache)}
        after = outputs(cli, base, "oci:after", profile=profile, environment=again)
        assert after["artifact"]["digest"] == wanted
        shutil.rmtree(tmp_path / "after")
    assert ended < kills, "some were killed"
    assert [p for p in (cache / "build").iterdir() if p.is_dir()] == []
