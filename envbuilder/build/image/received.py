"""Check an image that another machine built and exported, before anything else reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import INDEX, Index, Layout, oci_platform, place
from envbuilder.core.errors import BuildError, InvalidError

if TYPE_CHECKING:
    from envbuilder.build.plan import Receive


def take(step: Receive) -> Layout:
    """Return a layout with the exported image alone, every blob of it hashed, under its names.

    Raises `BuildError` if it is damaged, for another platform, or not what was to be built.
    """
    try:
        return _taken(step)
    except InvalidError as error:  # of the export; the user's input is fine
        raise BuildError(
            f"the buildx instance '{step.instance}' sent no usable image: {error.message}",
            "Build again. If it fails again, use --builder layers.",
        ) from error


def _taken(step: Receive) -> Layout:
    exported = Layout.open(Path(step.exported))
    entry = exported.find(step.platform)
    manifest = exported.read_manifest(entry)
    labels = (exported.read_config(manifest).get("config") or {}).get("Labels") or {}
    if labels.get(f"{LABEL}fingerprint") != step.fingerprint:
        raise InvalidError("it has another fingerprint than the image that was to be built")
    layout = Layout.create(Path(step.layout))
    for blob in (manifest.config, *manifest.layers):
        place(exported.checked(blob), layout.blob(blob.digest))
    added = layout.add(exported.read(entry), entry.media_type, platform=oci_platform(step.platform))
    named = tuple(replace(added, annotations=archive.named(name)) for name in step.names)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=named or (added,)))
    return layout
