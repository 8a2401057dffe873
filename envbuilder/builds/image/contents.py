"""The contents of a base image, and an image on top of them: its configuration and its index."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import conventions
from envbuilder.containers.oci import archive, rootfs
from envbuilder.containers.oci.layer import Layer
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER,
    LAYER_ZSTD,
    MANIFEST,
    Descriptor,
    Index,
    Layout,
    Manifest,
    encode,
    oci_platform,
)
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.builds.image.layer_cache import LayerCache
    from envbuilder.builds.project_layer import ProjectLayer
    from envbuilder.core import types


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's default for images that set no PATH."""
# Keys of the OCI specification. Builders add others, some of which describe the build machine.
_CARRIED = ("architecture", "os", "os.version", "os.features", "variant", "config", "history")
_OCI_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{LAYER}+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": LAYER_ZSTD,
}


class BaseContents(Struct, frozen=True, kw_only=True):
    """A base image in a layout."""

    layout: Layout
    manifest: Manifest
    config: dict[str, Any]
    root: rootfs.RootFs

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Return its layers with OCI media types; Docker's do not belong in an OCI manifest."""
        layers = []
        for blob in self.manifest.layers:
            kind = _OCI_TYPES.get(blob.media_type, blob.media_type)
            layers.append(Descriptor(media_type=kind, digest=blob.digest, size=blob.size))
        return tuple(layers)


def read_contents(folder: str, platform: types.Platform, cache: LayerCache) -> BaseContents:
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
    return BaseContents(
        layout=layout, manifest=manifest, config=layout.read_config(manifest), root=root
    )


def write_image(
    layout: Layout,
    config: Mapping[str, Any],
    layers: tuple[Descriptor, ...],
    platform: types.Platform,
    names: Sequence[str],
) -> None:
    """Add the manifest and index of an image whose layers a layout holds, under its names."""
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(encode(config), CONFIG),
        layers=layers,
    )
    entry = layout.add(encode(manifest), MANIFEST, platform=oci_platform(platform))
    name_image(layout, entry, names)


def name_image(layout: Layout, entry: Descriptor, names: Sequence[str]) -> None:
    """Write a layout's index: one image, under its names."""
    entries = tuple(replace(entry, annotations=archive.named(name)) for name in names) or (entry,)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=entries))


def created(epoch: int) -> str:
    """Return the time of an image as its configuration states it."""
    time = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Added(Struct, frozen=True, kw_only=True):
    """A layer on top of the base, and why it is there."""

    layer: Layer
    reason: str


def base_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of an image's configuration, always including PATH."""
    pairs = (config.get("config") or {}).get("Env") or []
    if not isinstance(pairs, list) or not all(isinstance(p, str) for p in pairs):
        raise InvalidError("the base image's configuration: config.Env: not a list of text")
    variables = dict(p.split("=", 1) for p in pairs if "=" in p)
    variables.setdefault("PATH", DEFAULT_PATH)
    return variables


def image_config(
    base: Mapping[str, Any],
    added: Sequence[Added],
    variables: Mapping[str, str],
    labels: Mapping[str, str],
    epoch: int,
    project: ProjectLayer | None = None,
) -> dict[str, Any]:
    """Return an image's configuration on top of a base's; `InvalidError` if that is damaged."""
    carried: dict[str, Any] = {k: base[k] for k in _CARRIED if k in base}
    base_ids = (base.get("rootfs") or {}).get("diff_ids")
    if not isinstance(base_ids, list) or not all(isinstance(d, str) for d in base_ids):
        raise InvalidError("the base image's configuration: rootfs.diff_ids: not a list of digests")
    inherited = base_variables(base)
    path = project.path if project else conventions.PATH
    overrides = {"PATH": f"{path}:{inherited['PATH']}", **variables}
    run = dict(base.get("config") or {})
    run |= {
        "Env": [f"{k}={v}" for k, v in {**inherited, **overrides}.items()],
        "Labels": {**(run.get("Labels") or {}), **labels},
        "User": conventions.USER,
        "WorkingDir": conventions.WORK,
        "Entrypoint": list(conventions.ENTRYPOINT),
        "Cmd": list(project.command if project else conventions.COMMAND),
        "ArgsEscaped": True,  # BuildKit says so of every image whose Dockerfile has a CMD
    }
    if project and project.ports:
        ports: dict[str, Any] = {f"{port}/tcp": {} for port in project.ports}
        run["ExposedPorts"] = {**(run.get("ExposedPorts") or {}), **ports}
    time = created(epoch)
    history = [{"created": time, "created_by": f"envbuilder: {a.reason}"} for a in added]
    return carried | {
        "created": time,
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [*base_ids, *(a.layer.diff_id for a in added)]},
        "history": [*(base.get("history") or []), *history],
    }
