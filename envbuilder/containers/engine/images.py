"""Move images between OCI layouts and a container engine.

Blobs that the engine already has are not sent again.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import INDEXES, MANIFESTS, Index, Layout, Manifest, decode
from envbuilder.core import files, types
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from envbuilder.containers.engine.interface import Engine, Image


def export(engine: Engine, image: Image, folder: Path) -> Layout:
    """Export an image from the engine as a layout in `folder`, named after the image's id.

    Raise `BuildError` if the engine cannot export OCI layouts, as with Docker before version 25.
    Also raise it if a blob of the image is missing, because Docker omits blobs that its store has
    lost.
    """
    target = folder / image.id.removeprefix("sha256:")
    if target.is_dir():
        kept = Layout.open(target)
        if not kept.missing():
            return kept
        files.remove(target, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        new_layout = Path(scratch) / "layout"
        try:
            engine.save(image, new_layout)
        except InvalidError as error:  # of the engine's archive; the user's input is fine
            raise BuildError(error.message, error.hints) from error
        if lost := Layout.open(new_layout).missing():
            name = image.tags[0] if image.tags else image.id
            raise BuildError(
                f"{name}: the engine has lost {lost[0]}, which belongs to this image",
                f"Remove the image (docker rmi {name}), then pull or load it again.",
            )
        archive.move_into_place(new_layout, target)
    return Layout.open(target)


def take(engine: Engine, ref: str, folder: Path) -> Layout:
    """Export an image from the engine as a layout, then remove the image's tag from the engine."""
    image = engine.image(ref)
    if image is None:
        raise BuildError(f"{ref}: built, but the engine does not have the image")
    try:
        return export(engine, image, folder)
    finally:
        engine.remove(ref)


def load(
    engine: Engine, layout: Layout, recorded: Layout, names: Sequence[str] = (), preload: str = ""
) -> tuple[types.Digest, types.Digest]:
    """Load the only image in a layout. Return the digests of its configuration and manifest.

    The image gets `names` or, if there are none, the names in the layout. Layers that the engine
    already has are not sent again. `recorded` contains the manifests of images that were exported
    or loaded earlier. `preload` is the name of an image that consists of the lower layers and was
    loaded in advance. Raise `BuildError` if the engine does not have the image afterwards.
    """
    descriptors = layout.index().manifests
    manifest = layout.read_manifest(descriptors[0])
    ids = (manifest.config.digest, descriptors[0].digest)
    names = names or archive.names(descriptors)
    present = layers(engine, recorded, manifest, names, preload)
    try:
        engine.load(layout, names, present)
        _require(engine, names, ids)
    except EnvbuilderError:
        if not present:
            raise
        # The engine may have dropped a blob that it had.
        engine.load(layout, names, ())
        _require(engine, names, ids)
    remember(layout, recorded)
    return ids


def _require(engine: Engine, names: Sequence[str], ids: Collection[types.Digest]) -> None:
    for name in names:
        image = engine.image(name)
        if image is None or image.id not in ids:
            raise BuildError(
                f"{name}: loaded, but the engine has {image.id if image else 'no such image'}"
                f" instead of {' or '.join(ids)}"
            )


# --- which layers an engine has: it lists its images, but not their layers


def remember(layout: Layout, recorded: Layout) -> None:
    """Add the manifests of all images in `layout` to the records in `recorded`."""
    files.ensure_folder(recorded.folder)
    for image in (*layout.index().manifests, *layout.images()):
        if image.media_type in MANIFESTS | INDEXES and layout.has(image):
            recorded.add(layout.read(image), image.media_type)


def layers(
    engine: Engine, recorded: Layout, manifest: Manifest, names: Sequence[str], preload: str
) -> set[types.Digest]:
    """Return the digests of those layers of an image that the engine is known to have.

    First look in the engine for the image `preload`, which consists of the lower layers. If it is
    missing, look for the images that currently have the `names`, because the new image usually
    replaces them. The layers of these images are known if their manifests are in `recorded`.
    """
    if not engine.receives_layers:
        return set()
    image = engine.image(preload) if preload else None
    held: set[types.Digest] = set()
    for present in [image] if image else filter(None, map(engine.image, names)):
        held |= _recorded(present.id, recorded)
    return held & {layer.digest for layer in manifest.layers}


def _recorded(digest: types.Digest, recorded: Layout) -> set[types.Digest]:
    """Return an image's layers, or an empty set if its manifest or index is not recorded."""
    try:
        path = recorded.blob(digest)
        return _layers(path.read_bytes(), recorded) if path.is_file() else set()
    except (OSError, EnvbuilderError):
        return set()


def _layers(data: bytes, recorded: Layout) -> set[types.Digest]:
    """Return the layers that a manifest lists, or that the recorded manifests in an index list."""
    if b'"layers"' in data:
        return {layer.digest for layer in decode(data, Manifest, "a manifest").layers}
    held: set[types.Digest] = set()
    for descriptor in decode(data, Index, "an index").manifests:
        if recorded.has(descriptor):
            held |= {layer.digest for layer in recorded.read_manifest(descriptor).layers}
    return held
