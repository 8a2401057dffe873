"""Small real images in OCI layouts, and wheels in a store, for tests of what is made of them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layer import Member
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    MANIFEST,
    Descriptor,
    Index,
    Layout,
    Manifest,
    encode,
    place,
)
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support.packed import zipped

PYTHON = b"\x7fELF\x003.2.0\x003.11.2\x00"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9

Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13
"""
BASE = (
    Member(path="etc", kind="folder", mode=0o755),
    Member(path="etc/group", content=b"root:x:0:\n"),
    Member(path="etc/passwd", content=b"root:x:0:0:root:/root:/bin/sh\n"),
    Member(path="lib", kind="link", target="usr/lib"),
    Member(path="usr/bin/python3", kind="link", target="python3.11"),
    Member(path="usr/bin/python3.11", mode=0o755, content=PYTHON),
    Member(path="usr/lib", kind="folder", mode=0o755),
    Member(path="var/lib/dpkg/status", content=STATUS.encode()),
)


def image(
    folder: Path,
    layers: Sequence[Sequence[Member]] = (BASE,),
    architecture: str = "amd64",
    **config: Any,
) -> Layout:
    """A layout with one image more."""
    layout = Layout.create(folder)
    made = []
    for number, members in enumerate(layers):
        written = folder / f"layer{number}"
        made.append(layer.pack(layer.tar(members, 0), written))  # whiteouts, too
        place(written, layout.blob(made[-1].digest))
        written.unlink()
    stated = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [m.diff_id for m in made]},
        **config,
    }
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(encode(stated), CONFIG),
        layers=tuple(m.descriptor for m in made),
    )
    add(layout, layout.add(encode(manifest), MANIFEST))
    return layout


def index_of(*manifests: Descriptor) -> Index:
    return Index(schema_version=2, media_type=INDEX, manifests=manifests)


def add(layout: Layout, *found: Descriptor) -> None:
    """List something more in a layout's index."""
    layout.write_index(index_of(*layout.index().manifests, *found))


def record(info: str, files: Mapping[str, bytes]) -> bytes:
    """What a wheel's RECORD says of its files."""
    rows = [f"{n},sha256={encoded(hashlib.sha256(c).digest())},{len(c)}" for n, c in files.items()]
    return "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()


def encoded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def wheel(store: Store, name: str, files: dict[str, bytes], version: str = "1.0") -> File:
    """A wheel in the store, and what a lock says of it."""
    info = f"{name}-{version}.dist-info"
    data = zipped({**files, f"{info}/RECORD": record(info, files)}, zipfile.ZIP_STORED)
    digest = hashlib.sha256(data).hexdigest()
    path = store.path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return File(
        kind="wheel", name=name, version=version, file=f"{name}-{version}-py3-none-any.whl",
        sha256=digest, size=len(data), source="default", provenance="read", by="test",
    )  # fmt: skip
