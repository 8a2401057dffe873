"""Move images between OCI layouts and a container engine.

An engine that already has some of an image's blobs is sent only the others: it knows them by
digest.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.containers.oci import archive
from envbuilder.containers.oci.descriptor import INDEXES, MANIFESTS, Index, Manifest, decode
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import folders
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from envbuilder.containers.engine.interface import Engine, Image
    from envbuilder.core import types

_loading = threading.Lock()
"""Of builds side by side, two that load at once would both send the layers that they share, and the
engine would unpack them twice."""
_WORTH = 32 << 20
"""Bytes to send that take longer than a list of the engine's images."""


def export(engine: Engine, image: Image, folder: Path) -> Layout:
    """Export an image of the engine as a layout, kept in `folder` under the image's id.

    Raise `BuildError` if the engine sends no OCI layout (Docker does from version 25 on).
    """
    target = folder / image.id.removeprefix("sha256:")
    if target.is_dir():
        return Layout.open(target)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        part = Path(scratch) / "layout"
        try:
            engine.save(image, part)
        except InvalidError as error:  # of the engine's archive; the user's input is fine
            raise BuildError(error.message, error.hint) from error
        if not target.is_dir():  # else another process was faster
            part.rename(target)
    return Layout.open(target)


def take(engine: Engine, ref: str, folder: Path) -> Layout:
    """Export an image of the engine as a layout, then remove its tag from the engine."""
    image = engine.image(ref)
    if image is None:
        raise BuildError(f"{ref}: not in the engine after it was built")
    try:
        return export(engine, image, folder)
    finally:
        engine.remove(ref)


def load(
    engine: Engine, layout: Layout, recorded: Layout, names: Sequence[str] = (), preload: str = ""
) -> tuple[types.Digest, types.Digest]:
    """Load a layout's one image; return the digests of its configuration and of its manifest.

    `recorded` holds the manifests of images exported or loaded earlier: layers of those still in
    the engine are not sent again. If the image `preload` (the preloaded lower layers) is in the
    engine, only that one is considered. The image gets `names`, or the names in the layout. Raise
    `BuildError` if the engine ends up with another image.
    """
    with _loading:
        return _load(engine, layout, recorded, names, preload)


def _load(
    engine: Engine, layout: Layout, recorded: Layout, names: Sequence[str], preload: str
) -> tuple[types.Digest, types.Digest]:
    listed = layout.index().manifests
    manifest = layout.read_manifest(listed[0])
    ids = (manifest.config.digest, listed[0].digest)
    names = names or [d.annotations[archive.NAME] for d in listed if archive.NAME in d.annotations]
    stored = _stored(engine, recorded, manifest, names, preload)
    try:
        engine.load(layout, names, stored)
        _require(engine, names, ids)
    except EnvbuilderError:
        if not stored:
            raise
        # The engine may have dropped a blob that it had.
        engine.load(layout, names, ())
        _require(engine, names, ids)
    remember(layout, recorded)
    return ids


def remember(layout: Layout, recorded: Layout) -> None:
    """Record the manifests of a layout's images in `recorded`, for `load`."""
    folders.ensure(recorded.folder)
    for image in (*layout.index().manifests, *layout.images()):
        if image.media_type in MANIFESTS | INDEXES and layout.has(image):
            recorded.add(layout.read(image), image.media_type)


def _stored(
    engine: Engine, recorded: Layout, manifest: Manifest, names: Sequence[str], preload: str
) -> set[types.Digest]:
    """Return the layers of recorded images that the engine still has, by their manifest digests.

    Listing all images is slow: the engine adds up their sizes. What has one of the names now is
    mostly the image that this one replaces; all are listed only if that one lacks too much of it.
    """
    if not engine.receives_layers:
        return set()
    image = engine.image(preload) if preload else None
    if image is not None:
        return _recorded([image.id], recorded)
    named = filter(None, map(engine.image, names))
    layers = _recorded([image.id for image in named], recorded)
    if sum(d.size for d in manifest.layers if d.digest not in layers) > _WORTH:
        layers |= _recorded(engine.manifests(), recorded)
    return layers


def _recorded(ids: Iterable[types.Digest], recorded: Layout) -> set[types.Digest]:
    """Return the layers of those images whose manifests are recorded."""
    layers: set[types.Digest] = set()
    for digest in ids:
        with contextlib.suppress(EnvbuilderError):
            path = recorded.blob(digest)
            if path.is_file():
                layers |= _layers(path.read_bytes(), recorded)
    return layers


def _layers(data: bytes, recorded: Layout) -> set[types.Digest]:
    """Return the layers of a manifest, or of an index's manifests that are recorded."""
    if b'"layers"' in data:
        return {d.digest for d in decode(data, Manifest, "a manifest").layers}
    listed = [m for m in decode(data, Index, "an index").manifests if recorded.has(m)]
    return {d.digest for m in listed for d in recorded.read_manifest(m).layers}


def _require(engine: Engine, names: Sequence[str], ids: Collection[types.Digest]) -> None:
    for name in names:
        image = engine.image(name)
        if image is None or image.id not in ids:
            raise BuildError(
                f"{name}: the engine has {image.id if image else 'no such image'} after it was"
                f" loaded, not {' or '.join(ids)}"
            )
