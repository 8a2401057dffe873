"""Images to and from Debian's docker-registry on loopback."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import Engine
from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import Descriptor, Layout
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.containers.registry.push import PIECE
from envbuilder.core import http_transport
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.core.settings import Configuration, Settings
from tests.conftest import ran, succeeded
from tests.support import image_layouts as images
from tests.support.registry_requests import attached
from tests.support.registry_server import PASSWORD, USER, Registry, cutting

SILENT = PlainProgress(lambda line: None)
BIG = 2 * PIECE + PIECE // 2
"""Three pieces."""


@pytest.fixture
def found(tmp_path: Path) -> Settings:
    """Settings whose folders are all below the test's own folder."""
    return Settings(
        project=None,
        config_dir=tmp_path / "config",
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        configuration=Configuration(),
    )


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is logged in anywhere."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "layout")


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def connect(host: str, name: str = "envbuilder/cpu") -> Connection:
    return Connection(reference.parse(f"{host}/{name}"), pause=lambda seconds: None)


def push(
    host: str, layout: Layout, image: Descriptor, found: Settings, **options: Any
) -> transfer.Pushed:
    name = options.pop("name", "envbuilder/cpu")
    tag = options.pop("tag", "latest")
    return transfer.push(
        connect(host, name), tag, layout, image, found.uploads_dir, SILENT, **options
    )


def test_an_image_goes_and_comes_back_by_its_digest(
    registry: Registry, layout: Layout, found: Settings, tmp_path: Path
) -> None:
    image = images.image(layout, noise(BIG), b"small")
    done = push(registry.host, layout, image, found)
    assert done.digest == image.digest
    assert done.sent == 3
    pulled = transfer.obtain_base(
        f"{registry.host}/envbuilder/cpu", image.digest, "linux/amd64", found, SILENT
    )
    assert pulled.find("linux/amd64").digest == image.digest
    assert pulled.checked(pulled.manifest("linux/amd64").layers[0]).stat().st_size == BIG
    registry.stop()
    transfer.obtain_base(
        f"{registry.host}/envbuilder/cpu", image.digest, "linux/amd64", found, SILENT
    )


def test_an_index_keeps_its_digest(
    registry: Registry, layout: Layout, found: Settings, tmp_path: Path
) -> None:
    index = images.multi(layout)
    push(registry.host, layout, index, found)
    for name in ("amd64", "arm64"):
        pulled = Layout.create(tmp_path / name)
        transfer.pull(connect(registry.host), index.digest, pulled, f"linux/{name}", SILENT)
        assert [d.platform.architecture for d in pulled.images() if d.platform] == [name]


def test_profiles_share_their_layers(registry: Registry, layout: Layout, found: Settings) -> None:
    torch = noise(PIECE)
    cpu = images.image(layout, torch, b"tuned allocator")
    zendnn = images.image(layout, torch, b"zentorch")
    assert push(registry.host, layout, cpu, found).bytes > PIECE
    # The configuration is the same, too: these images are no real ones.
    second = push(registry.host, layout, zendnn, found, name="envbuilder/zendnn")
    assert (second.mounted, second.sent) == (2, 1)
    assert second.bytes == len(b"zentorch") + zendnn.size
    third = push(registry.host, layout, zendnn, found, tag="zendnn")
    assert (third.mounted, third.present, third.bytes) == (1, 2, zendnn.size)


PUSHER = """
import os, signal, sys
from pathlib import Path
from envbuilder.core.settings import load as load_settings
from envbuilder.core.console import PlainProgress
from envbuilder.containers.oci import reference
from envbuilder.containers.registry import transfer as registry
from envbuilder.containers.oci.layout import Layout

ref, folder = sys.argv[1], Path(sys.argv[2])
after, number = int(sys.argv[3]), int(sys.argv[4])
sent = 0

class Task:
    def advance(self, amount):
        global sent
        sent += amount
        if after and sent >= after:
            os.kill(os.getpid(), number)

class Progress(PlainProgress):
    def task(self, *args, **kwargs):
        import contextlib
        return contextlib.nullcontext(Task())

found = reference.parse(ref)
layout = Layout.open(folder)
options = load_settings()
connection = registry.connect(found, options)
image = layout.index().manifests[0]
progress = Progress(lambda line: None)
done = registry.push(connection, found.tag_or_digest, layout, image, options.uploads_dir, progress)
print(done.bytes)
"""


def pusher(
    ref: str, layout: Layout, found: Settings, after: int, number: int = signal.SIGKILL
) -> subprocess.CompletedProcess[str]:
    """A push as a process of its own, which signals itself once so many bytes were sent."""
    return ran(
        [sys.executable, "-c", PUSHER, ref, str(layout.folder), str(after), str(int(number))],
        env={**os.environ, "ENVBUILDER_CACHE_DIR": str(found.cache_dir)},
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("restarted", [False, True], ids=["same", "restarted"])
def test_a_push_after_one_that_was_ended(
    registry: Registry,
    layout: Layout,
    found: Settings,
    restarted: bool,
    number: signal.Signals,
) -> None:
    image = images.image(layout, noise(BIG))
    ref = f"{registry.host}/envbuilder/cpu:latest"
    ended = pusher(ref, layout, found, after=PIECE, number=number)
    assert ended.returncode != 0, ended.stderr
    if restarted:
        registry.stop(signal.SIGKILL)
        registry.start()
    succeeded(pusher(ref, layout, found, after=0))
    assert _is_there(registry, image, found)


def _is_there(registry: Registry, image: Descriptor, found: Settings) -> bool:
    ref = f"{registry.host}/envbuilder/cpu"
    pulled = transfer.obtain_base(ref, image.digest, "linux/amd64", found, SILENT)
    return pulled.find("linux/amd64").digest == image.digest


def test_a_connection_that_is_cut_within_a_piece(
    registry: Registry, layout: Layout, found: Settings
) -> None:
    image = images.image(layout, noise(BIG))
    with cutting(registry.host) as proxy:
        proxy.cut_after = PIECE + PIECE // 2
        done = push(proxy.host, layout, image, found)
        assert proxy.cuts == 1
    # docker-registry drops an upload with half a piece: the blob is sent once more, and no more.
    assert BIG < done.bytes < 2 * BIG
    assert _is_there(registry, image, found)


def test_a_pull_that_is_cut_goes_on(
    registry: Registry, layout: Layout, found: Settings, tmp_path: Path
) -> None:
    image = images.image(layout, noise(BIG))
    push(registry.host, layout, image, found)
    manifest = layout.read_manifest(image)
    with cutting(registry.host) as proxy:
        proxy.cut_back_after = PIECE
        pulled = Layout.create(tmp_path / "pulled")
        done = transfer.pull(connect(proxy.host), image.digest, pulled, "linux/amd64", SILENT)
        assert proxy.cuts == 1
    assert done == BIG + manifest.config.size  # nothing came twice


def test_a_registry_that_is_gone_is_named(
    registry: Registry, layout: Layout, found: Settings
) -> None:
    image = images.image(layout, b"small")
    registry.stop(signal.SIGKILL)
    with pytest.raises(BuildError, match=rf"{registry.host}/envbuilder/cpu.*does not answer"):
        push(registry.host, layout, image, found)


def test_a_registry_that_hangs_is_given_up(
    registry: Registry, layout: Layout, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transport.Session, "timeout", (1.0, 0.3))
    image = images.image(layout, b"small")
    os.kill(registry.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BuildError, match="timed out"):
            push(registry.host, layout, image, found)
    finally:
        os.kill(registry.pid, signal.SIGCONT)
    push(registry.host, layout, image, found)


def test_a_password(
    closed_registry: Registry, layout: Layout, found: Settings, tmp_path: Path
) -> None:
    host = closed_registry.host
    image = images.image(layout, noise(BIG))
    with pytest.raises(BuildError, match="not logged in") as caught:
        push(host, layout, image, found)
    assert f"docker login {host}" in caught.value.hint
    _log_in(tmp_path, host, "very-wrong-password")
    with pytest.raises(BuildError, match="HTTP 401") as caught:
        push(host, layout, image, found)
    assert "very-wrong" not in caught.value.message + caught.value.hint
    _log_in(tmp_path, host, PASSWORD)
    push(host, layout, image, found)
    assert _is_there(closed_registry, image, found)


def test_a_credential_helper_knows_the_password(
    closed_registry: Registry,
    layout: Layout,
    found: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = closed_registry.host
    helper = tmp_path / "bin/docker-credential-tested"
    helper.parent.mkdir()
    answer = json.dumps({"ServerURL": host, "Username": USER, "Secret": PASSWORD})
    helper.write_text(
        f'#!/bin/sh\nread server; [ "$1 $server" = "get {host}" ] && echo \'{answer}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps({"credHelpers": {host: "tested"}}))
    image = images.image(layout, b"small")
    push(host, layout, image, found)
    assert _is_there(closed_registry, image, found)
    helper.write_text("#!/bin/sh\necho very-secret >&2; exit 3\n")
    with pytest.raises(
        ToolError, match=r"docker-credential-tested returned no credentials for .* \(exit 3\)"
    ) as caught:
        push(host, layout, image, found)
    assert "very-secret" not in caught.value.message


def _log_in(folder: Path, host: str, password: str) -> None:
    (folder / "docker").mkdir(exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "docker/config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_attachments_leave_the_image_as_it_is(
    registry: Registry, layout: Layout, found: Settings
) -> None:
    """docker-registry 2.8 keeps no lists of them: they are kept under a tag."""
    image = images.image(layout, b"small")
    push(registry.host, layout, image, found)
    connection = connect(registry.host)
    for kind in ("application/vnd.cyclonedx+json", "application/vnd.in-toto+json"):
        made = transfer.make_referrer(layout, image, kind, kind.encode())
        transfer.attach(connection, layout, made, image, found.uploads_dir, SILENT)
        transfer.attach(connection, layout, made, image, found.uploads_dir, SILENT)
    listed = attached(connection, image.digest)
    assert [d.artifact_type for d in listed] == [
        "application/vnd.cyclonedx+json",
        "application/vnd.in-toto+json",
    ]
    head, _ = connection.read_manifest("latest")
    assert head.digest == image.digest


@pytest.mark.engine
def test_a_real_engine_pulls_what_we_push_and_we_pull_what_it_pushes(
    registry: Registry,
    docker_client: Any,
    real_engine: Engine,
    base_image: str,
    found: Settings,
    tmp_path: Path,
) -> None:
    described = real_engine.image(base_image)
    exported = engines.export(real_engine, described, tmp_path / "exported")
    image = next(iter(exported.images()))
    push(registry.host, exported, image, found, tag="ours")
    ref = f"{registry.host}/envbuilder/cpu@{image.digest}"
    theirs = f"{registry.host}/theirs:latest"
    try:
        docker_client.images.pull(ref)
        said = docker_client.containers.run(
            ref, ["python3", "-c", "print(6 * 7)"], network_mode="none", remove=True
        )
        assert said.strip() == b"42"
        docker_client.api.tag(ref, f"{registry.host}/theirs", "latest")
        pushed = docker_client.api.push(f"{registry.host}/theirs", "latest")
        assert "errorDetail" not in pushed
        top, _ = connect(registry.host, "theirs").read_manifest("latest")
        pulled = transfer.obtain_base(theirs, top.digest, "linux/amd64", found, SILENT)
        config = exported.read_manifest(image).config.digest
        assert pulled.manifest("linux/amd64").config.digest == config
    finally:
        for name in (ref, theirs):
            subprocess.run(["docker", "image", "rm", name], capture_output=True, check=False)
