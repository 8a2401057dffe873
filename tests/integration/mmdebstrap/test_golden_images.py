"""Images on bases of locked Debian packages: the digests that they had when they were recorded.

What else decides the bytes stands beside each digest (`made_by`): mmdebstrap, which calls the
machine's apt and dpkg, makes the base; uv installs the wheels; zstd compresses the layers. After a
wanted change: `make golden`, then say in the commit why the digests moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.oci.layout import Layout
from envbuilder.core import console, resources, types as words
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.packages import fetch
from envbuilder.packages.debian import suite
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.lock import File, Lock, Target
from tests.conftest import missing, succeeded
from tests.integration.conftest import Cli
from tests.support import debs, make_wheels
from tests.support.arm_host import linux_host
from tests.support.images import PYTHON
from tests.support.projects import lay_profile
from tests.support.shipped import shipped_lock

pytestmark = [pytest.mark.network, pytest.mark.slow]

PLATFORM = "linux/amd64"
SHIPPED = resources.profiles_dir()
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}

GENERATED = """\
description: Generated packages and wheels on a base of generated packages
accelerator: cpu
python: {default: "3.11", supported: ["3.11"]}
platforms: [linux/amd64]
backends: [docker]
tools: {uv: UV}
requirements: [left==1.0, right==1.0]
debian_suite: bookworm
debian_base:
  "3.11":
    include: [python3.11]
    unpacked: [linux/amd64]
system_packages: [libgolden1]
unpack_packages: true
bytecode: false
environment: {GOLDEN: "1"}
expects: {device: cpu, version: 2.13.0}
"""
BASE: dict[str, dict[str, bytes | str | None]] = {
    "base-passwd": {
        "usr/share/base-passwd/group.master": b"root:*:0:\n",
        "usr/share/base-passwd/passwd.master": b"root:*:0:0:root:/root:/bin/sh\n",
        "usr/share/doc/base-passwd/README": b"left out of a base\n",
        "usr/share/doc/base-passwd/copyright": b"kept\n",
    },
    "python3.11": {
        "usr/bin/python3.11": PYTHON,
        "usr/bin/python3": "python3.11",
        "usr/lib/python3.11/os.py": b"",
        "usr/lib/python3.11/__pycache__/os.cpython-311.pyc": b"left out, too",
    },
}
ABOVE: dict[str, bytes | str | None] = {
    "usr/lib/libgolden.so.1": "libgolden.so.1.0",
    "usr/lib/libgolden.so.1.0": b"\x7fELF",
}
WHEELS = {
    "left": {"left/__init__.py": b"def main(): ...\n"},
    "right": {"right.py": b"", "right-1.0.data/scripts/right-script": b"#!python\n"},
}


@pytest.fixture
def own(session_environment: dict[str, str]) -> Settings:
    return load_settings({**os.environ, **session_environment})


@pytest.fixture
def host(session_environment: dict[str, str], tmp_path: Path) -> Path:
    return linux_host(session_environment, tmp_path, "x86_64", PLATFORM)


def obtain(files: Sequence[File], target: Target, own: Settings) -> None:
    fetch.fetch(files, target, own, console.PlainProgress(lambda line: None))


def obtain_tool(lock: Lock, target: Target, own: Settings) -> File:
    """The locked uv that runs on this machine, in the store."""
    tool = lock.tool(words.container_platform(platform.machine()))
    try:
        obtain([tool], target, own)
    except BuildError as error:
        missing("network", f"uv cannot be had here: {error.message}")
    return tool


def made(
    cli: Cli, name: str, folder: Path, files: Sequence[File], own: Settings, host: Path
) -> Any:
    """Build an image from nothing but these files, without an engine; return what to record."""
    if shutil.which("mmdebstrap") is None:
        missing("mmdebstrap", "mmdebstrap is not installed")
    found = folder / "files"
    found.mkdir(parents=True)
    for file in files:
        Store(own.store_dir).link(file, found)
    done = succeeded(
        cli(
            "build",
            "--profile",
            name,
            "--builder",
            "layers",
            "--target-host",
            str(host),
            "--output",
            f"oci:{folder / 'image'}",
            "--json",
            environment={
                **NO_ENGINE,
                "PIP_FIND_LINKS": str(found),
                "ENVBUILDER_CACHE_DIR": str(folder / "cache"),
            },
        )
    )
    layout = Layout.open(folder / "image")
    manifest = layout.manifest(PLATFORM)
    config = layout.read_config(manifest)
    layers = zip(config["history"], manifest.layers, config["rootfs"]["diff_ids"], strict=True)
    return {
        "manifest": layout.find(PLATFORM).digest,
        "made_by": json.loads(done.stdout)["made_by"],
        "layers": [
            {"what": entry["created_by"], "digest": blob.digest, "diff_id": diff_id}
            for entry, blob, diff_id in layers
        ],
    }


def compare(image: dict[str, Any], path: Path, *, rewrite: bool) -> None:
    """Fail if an image is not the recorded one, with what differs and what may be the reason."""
    if rewrite:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(image, indent=1) + "\n")
    golden = json.loads(path.read_text())
    if image["manifest"] == golden["manifest"]:
        return
    differ = [layer["what"] for layer in image["layers"] if layer not in golden["layers"]]
    then = golden["made_by"]
    now = image["made_by"]
    if then == now:
        reason = f"The same tools made both ({now}), so it is envbuilder or a profile that changed."
    else:
        reason = f"Tools decide bytes as well: it was recorded with {then}, and here are {now}."
    pytest.fail(
        f"{path.name} of {path.parent.name}: {image['manifest']} is not the recorded"
        f" {golden['manifest']}. What differs: {differ or 'the configuration alone'}. {reason}"
        " If that is wanted: make golden"
    )


@pytest.mark.soak
@pytest.mark.torch
def test_the_image_of_cpu_debian(
    cli: Cli, own: Settings, host: Path, tmp_path: Path, repository: Path, rewrite_golden: bool
) -> None:
    lock = shipped_lock("cpu-debian")
    target = lockfile.select(lock, PLATFORM, "3.11")
    packages = [f for f in target.files if f.kind == "deb"]
    try:
        obtain(packages, target, own)
    except BuildError as error:
        # Debian's mirrors drop what security fixes replace; not every machine reaches the archive.
        pytest.skip(f"cpu-debian's .debs cannot be had any more: {error.message}")
    try:
        obtain(target.of_kind("wheel"), target, own)
    except BuildError as error:
        missing("torch", f"the wheels of cpu-debian cannot be had here: {error.message}")
    files = (*target.files, obtain_tool(lock, target, own))
    image = made(cli, "cpu-debian", tmp_path / "once", files, own, host)
    path = repository / "tests/golden/cpu-debian/image.json"
    compare(image, path, rewrite=rewrite_golden)


def generated(folder: Path, store: Store, tool: File) -> Sequence[File]:
    """A project with the profile `generated`, and all files of its lock in the store."""
    lay_profile(folder, "generated", GENERATED.replace("UV", tool.version))
    profile = profiles.load("generated", (folder / "profiles",))
    base = [
        _package(
            store, name, "base", data, **({"Essential": "yes"} if name == "base-passwd" else {})
        )
        for name, data in BASE.items()
    ]
    files = (
        *(_wheel(store, folder, name, data) for name, data in WHEELS.items()),
        *base,
        _package(store, "libgolden1", "", ABOVE),
    )
    target = Target(
        platform=PLATFORM,
        python="3.11",
        base=suite.base(profile, PLATFORM, "3.11", files),
        files=files,
    )
    lock = Lock(
        schema=lockfile.SCHEMA,
        profile="generated",
        inputs=lockfile.inputs_digest(profile),
        state="locked",
        reason="",
        tools=shipped_lock("cpu").tools,
        targets=(target,),
    )
    (folder / "profiles/locks/generated.json").write_text(lockfile.dump(lock))
    return files


def _package(
    store: Store, name: str, role: words.Role, data: dict[str, bytes | str | None], **fields: str
) -> File:
    version = "3.11.2-1" if name.startswith("python") else "1"
    folders = sorted({"/".join(p.split("/")[:n]) for p in data for n in range(1, p.count("/") + 1)})
    content = debs.deb(
        name, version, data=dict.fromkeys(folders) | data, Priority="required",
        Maintainer="Nobody <nobody@example.org>", Description="Generated", **fields,
    )  # fmt: skip
    return File(
        kind="deb", name=name, version=version, file=f"pool/{name}_{version}_amd64.deb",
        sha256=_kept(store, content), size=len(content), source="debian", provenance="read",
        by="bookworm Release of 2026-07-11T10:16:37Z", role=role,
    )  # fmt: skip


def _wheel(store: Store, folder: Path, name: str, data: dict[str, bytes]) -> File:
    path = make_wheels.write(folder, name, data, f"{name} = {name}:main")
    content = path.read_bytes()
    return File(
        kind="wheel", name=name, version="1.0", file=path.name, sha256=_kept(store, content),
        size=len(content), source="default", provenance="read", by="the package index",
    )  # fmt: skip


def _kept(store: Store, content: bytes) -> words.Sha256:
    digest = hashlib.sha256(content).hexdigest()
    store.take(digest, [content])
    return digest


def test_an_image_of_generated_packages(
    cli: Cli, own: Settings, host: Path, tmp_path: Path, repository: Path, rewrite_golden: bool
) -> None:
    lock = shipped_lock("cpu")
    tool = obtain_tool(lock, lock.targets[0], own)
    files = (*generated(tmp_path, Store(own.store_dir), tool), tool)
    once = made(cli, "generated", tmp_path / "once", files, own, host)
    before = os.umask(0o077)
    try:
        again = made(cli, "generated", tmp_path / "again", files, own, host)
    finally:
        os.umask(before)
    assert again == once
    path = repository / "tests/golden/generated/image.json"
    compare(once, path, rewrite=rewrite_golden)


def test_a_difference_is_told_with_its_layers_and_tools(tmp_path: Path) -> None:
    def image(digest: str, maker: str) -> dict[str, Any]:
        layers = [{"what": "base", "digest": digest}, {"what": "payload", "digest": "p"}]
        return {"manifest": digest, "made_by": {"mmdebstrap": maker}, "layers": layers}

    path = tmp_path / "here/image.json"
    compare(image("one", "1.3.5"), path, rewrite=True)
    compare(image("one", "1.5.0"), path, rewrite=False)  # another version, the same bytes
    told = r"image.json of here: two is not the recorded one. What differs: \['base'\]"
    with pytest.raises(pytest.fail.Exception, match=f"{told}.*1.3.5.*1.5.0.*make golden"):
        compare(image("two", "1.5.0"), path, rewrite=False)
    with pytest.raises(
        pytest.fail.Exception, match=f"{told}.*envbuilder or a profile that changed"
    ):
        compare(image("two", "1.3.5"), path, rewrite=False)
