"""Move images between OCI layouts and a container engine.

An engine that already has some of an image's blobs is sent only the others: it knows them by
digest.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.containers.engine import stored
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import Layout
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from envbuilder.containers.engine.interface import Engine, Image
    from envbuilder.core import types

_loading = threading.Lock()
"""Of builds side by side, two that load at once would both send the layers that they share, and the
engine would unpack them twice."""


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

    `recorded` holds the manifests of images exported or loaded earlier, and `preload` is the image
    of the preloaded lower layers: layers that the engine has are not sent again (`stored.layers`).
    The image gets `names`, or the names in the layout. Raise
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
    present = stored.layers(engine, recorded, manifest, names, preload)
    try:
        engine.load(layout, names, present)
        _require(engine, names, ids)
    except EnvbuilderError:
        if not present:
            raise
        # The engine may have dropped a blob that it had.
        engine.load(layout, names, ())
        _require(engine, names, ids)
    stored.remember(layout, recorded)
    return ids


def _require(engine: Engine, names: Sequence[str], ids: Collection[types.Digest]) -> None:
    for name in names:
        image = engine.image(name)
        if image is None or image.id not in ids:
            raise BuildError(
                f"{name}: the engine has {image.id if image else 'no such image'} after it was"
                f" loaded, not {' or '.join(ids)}"
            )
