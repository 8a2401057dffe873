"""Read a base image: its layers, its configuration and its rootfs index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layout import LAYER, LAYER_ZSTD, Descriptor, Layout, Manifest

if TYPE_CHECKING:
    from envbuilder.build.image.layer_cache import LayerCache
    from envbuilder.core import types


class Base(Struct, frozen=True, kw_only=True):
    """A base image in a layout."""

    layout: Layout
    manifest: Manifest
    config: dict[str, Any]
    root: rootfs.RootFs

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Return its layers with OCI media types; Docker's do not belong in an OCI manifest."""
        return tuple(
            Descriptor(
                media_type=_OCI.get(d.media_type, d.media_type), digest=d.digest, size=d.size
            )
            for d in self.manifest.layers
        )


_OCI = {
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{LAYER}+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": LAYER_ZSTD,
}


def read(folder: str, platform: types.Platform, cache: LayerCache) -> Base:
    """Read the image for a platform from a layout; its rootfs index is cached.

    Raise `EnvbuilderError` if there is none or it is damaged.
    """
    layout = Layout.open(Path(folder))
    entry = layout.find(platform)
    manifest = layout.read_manifest(entry)
    root = cache.remembered(
        {"kind": "listing", "manifest": entry.digest},
        rootfs.RootFs,
        lambda: rootfs.read(layout, manifest),
    )
    return Base(layout=layout, manifest=manifest, config=layout.read_config(manifest), root=root)
