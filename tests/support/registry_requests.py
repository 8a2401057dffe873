"""The two sides of a registry's tests: one in memory on loopback, and clients of it."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import Descriptor, Index, Layout, decode
from envbuilder.containers.registry import push as blobs, transfer
from envbuilder.containers.registry.connection import ACCEPT, OK, Connection
from envbuilder.core import http_transport, types
from envbuilder.core.settings import Settings
from tests.support import image_layouts as images, registry_fixture as fake_registry
from tests.support.progress import SILENT
from tests.support.registry_fixture import PASSWORD, USER, FakeRegistry

BIG = bytes(range(256)) * 8192  # 2 MiB
SMALL = b"a small layer"
Send = Callable[..., transfer.Pushed]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    """A registry; nobody is logged in anywhere, and pieces are small."""
    monkeypatch.setattr(blobs, "PIECE", 1 << 19)
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with fake_registry.running() as made:
        yield made


def log_in(folder: Path, host: str, user: str = USER, password: str = PASSWORD) -> None:
    (folder / "docker").mkdir(exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "docker/config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def connect(server: FakeRegistry, name: str = "a", waits: list[float] | None = None) -> Connection:
    pause = (lambda seconds: None) if waits is None else waits.append
    return Connection(reference.parse(f"{server.host}/{name}"), pause=pause)


def push(
    server: FakeRegistry,
    layout: Layout,
    image: Descriptor,
    found: Settings,
    tag: str = "t",
    **options: Any,
) -> transfer.Pushed:
    name = options.pop("name", "a")
    return transfer.push(
        connect(server, name), tag, layout, image, found.uploads_dir, SILENT, **options
    )


def attached(to: Connection, digest: types.Digest) -> tuple[Descriptor, ...]:
    """The referrers of an image: in the registry's own list, else in the index under a tag."""
    for path in (f"referrers/{digest}", f"manifests/{digest.replace(':', '-')}"):
        url = to.url(path)
        with to.request("GET", url, path, accept=(200, 404), headers=ACCEPT) as response:
            if response.status_code == OK:
                return decode(response.content, Index, path).manifests
    return ()


def pull(server: FakeRegistry, wanted: str, folder: Path) -> int:
    layout = Layout.create(folder)
    return transfer.pull(connect(server), wanted, layout, "linux/amd64", SILENT)


def impatient(monkeypatch: pytest.MonkeyPatch, fault: str = "hang") -> None:
    """Where a registry hangs, it is given up soon; elsewhere a slow machine must not matter."""
    if fault == "hang":
        monkeypatch.setattr(http_transport.Session, "timeout", (10.0, 0.4))


@pytest.fixture
def source(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "source")


@pytest.fixture
def send(server: FakeRegistry, source: Layout, found: Settings) -> Send:
    """`send(image)` pushes an image of the source; `push` has the options."""
    return functools.partial(push, server, source, found=found)


@pytest.fixture
def there(server: FakeRegistry, source: Layout, found: Settings) -> Descriptor:
    """An image that the registry has, with a log that starts now."""
    made = images.image(source, BIG, SMALL)
    push(server, source, made, found)
    server.log.clear()
    return made
