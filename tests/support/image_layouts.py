"""Small images in layouts, for tests of what moves them."""

from __future__ import annotations

import json

from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    Descriptor,
    Layout,
    Manifest,
    Platform,
    encode,
)
from tests.support.images import index_of


def image(layout: Layout, *layers: bytes, architecture: str = "amd64") -> Descriptor:
    """An image of some layers, added to a layout."""
    config = {"os": "linux", "architecture": architecture, "rootfs": {"type": "layers"}}
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(json.dumps(config).encode(), CONFIG),
        layers=tuple(layout.add(data, LAYER_ZSTD) for data in layers),
    )
    platform = Platform(os="linux", architecture=architecture)
    made = layout.add(encode(manifest), MANIFEST, platform=platform)
    others = layout.index().manifests
    layout.write_index(index_of(*others, made))
    return made


def multi(layout: Layout) -> Descriptor:
    """An index of two platforms."""
    parts = (
        image(layout, f"layer for {name}".encode(), architecture=name)
        for name in ("amd64", "arm64")
    )
    return layout.add(encode(index_of(*parts)), INDEX)
