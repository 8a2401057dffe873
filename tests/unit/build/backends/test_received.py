"""An image from another machine is checked before anything reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from envbuilder.build.backends import docker
from envbuilder.build.plan import Receive
from envbuilder.containers.oci.archive import NAME
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    Index,
    Layout,
    Manifest,
    Platform,
    encode,
)
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

FINGERPRINT = "1" * 64


def exported(folder: Path, fingerprint: str = FINGERPRINT, machine: str = "amd64") -> Receive:
    """A step whose export has one image of two layers."""
    layout = Layout.create(folder / "exported")
    labels = {"io.envbuilder.fingerprint": fingerprint}
    config = {"os": "linux", "architecture": machine, "config": {"Labels": labels}}
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(json.dumps(config).encode(), CONFIG),
        layers=tuple(layout.add(data, LAYER_ZSTD) for data in (b"base", b"wheels")),
    )
    platform = Platform(os="linux", architecture=machine)
    entry = layout.add(encode(manifest), MANIFEST, platform=platform)
    layout.add(b"nobody asked for this", LAYER_ZSTD)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(entry,)))
    return Receive(
        what="check the image",
        exported=str(folder / "exported"),
        layout=str(folder / "layout"),
        platform="linux/amd64",
        fingerprint=FINGERPRINT,
        instance="big-box",
        names=("envbuilder/cpu:1", "envbuilder/cpu:latest"),
    )


def test_the_image_alone_is_taken_under_its_names(tmp_path: Path) -> None:
    layout = docker.receive(exported(tmp_path))
    listed = layout.index().manifests
    assert [d.annotations[NAME] for d in listed] == [
        f"docker.io/envbuilder/cpu:{tag}" for tag in ("1", "latest")
    ]
    manifest = layout.read_manifest(listed[0])
    assert [layout.checked(d).read_bytes() for d in manifest.layers] == [b"base", b"wheels"]
    assert len([*(tmp_path / "layout" / "blobs" / "sha256").iterdir()]) == 4


@pytest.mark.parametrize(
    ("fingerprint", "machine", "said"),
    [
        ("2" * 64, "amd64", "another fingerprint"),
        (FINGERPRINT, "arm64", "no images for linux/amd64"),
    ],
)
def test_another_image_than_was_to_be_built_is_refused(
    fingerprint: str, machine: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=said) as caught:
        docker.receive(exported(tmp_path, fingerprint, machine))
    assert "'big-box' sent no usable image" in caught.value.message
    assert not (tmp_path / "layout").exists()


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing"])
def test_damaged_bytes_are_refused(damage: str, tmp_path: Path) -> None:
    step = exported(tmp_path)
    source = Layout.open(tmp_path / "exported")
    blob = source.blob(source.manifest("linux/amd64").layers[1].digest)
    if damage == "missing":
        blob.unlink()
    else:
        blob.write_bytes(b"wheelz" if damage == "changed" else b"x")
    with pytest.raises(BuildError, match=r"damaged|not in the OCI layout"):
        docker.receive(step)


def test_no_layout_at_all_is_refused(tmp_path: Path) -> None:
    step = exported(tmp_path)
    (tmp_path / "exported" / "index.json").write_text("[]")
    with pytest.raises(BuildError, match="sent no usable image"):
        docker.receive(step)
