"""Move images between OCI layouts and a container engine.

An engine that already has some of an image's blobs is sent only the others: it knows them by
digest.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from envbuilder.containers.engine import client as engine
from envbuilder.containers.engine import podman
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.descriptor import INDEX, INDEXES, MANIFESTS, Index, Manifest, decode
from envbuilder.containers.oci.layout import MARK, Layout
from envbuilder.core import folders, process
from envbuilder.core.errors import BuildError, EnvbuilderError, ToolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from envbuilder.containers.oci.descriptor import Descriptor
    from envbuilder.core import types as words

_SECONDS = 1800.0
"""Generous, as the engine unpacks a whole image before it answers."""


def export(client: Any, found: engine.Image, folder: Path) -> Layout:
    """Export an image of the engine as a layout, kept in `folder` under the image's id.

    Raise `InvalidError` if the engine sends no OCI layout (Docker does from version 25 on).
    """
    target = folder / found.id.removeprefix("sha256:")
    if target.is_dir():
        return Layout.open(target)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        part = Path(scratch) / "layout"
        if isinstance(client, podman.Podman):
            saved = Path(scratch) / "saved.tar"
            where = ("--format", "oci-archive", "--output", str(saved))
            _podman(client, "save", "--quiet", *where, found.id)
            archive.unpack(saved, part)
        else:
            archive.receive(_saved(client, found), part, f"the image {found.id} of the engine")
        if not target.is_dir():  # else another process was faster
            part.rename(target)
    return Layout.open(target)


def take(ref: str, folder: Path) -> Layout:
    """Export an image of the engine as a layout, then remove its tag from the engine."""
    client = engine.connect()
    found = engine.image(client, ref)
    if found is None:
        raise BuildError(f"{ref}: not in the engine after it was built")
    try:
        return export(client, found, folder)
    finally:
        engine.remove_images([ref])


def _saved(client: Any, found: engine.Image) -> Iterator[bytes]:
    from docker.errors import APIError
    from requests import RequestException

    try:
        # By name: only then does the layout record which image it holds.
        yield from client.api.get_image(found.tags[0] if found.tags else found.id)
    except (APIError, RequestException) as error:
        raise ToolError(f"the engine cannot export {found.id}: {engine.short(error)}") from error


def load(
    client: Any, layout: Layout, made: Layout, names: Sequence[str] = (), ahead: str = ""
) -> tuple[words.Digest, words.Digest]:
    """Load a layout's one image; return the digests of its configuration and of its manifest.

    `made` holds the manifests of images exported or loaded earlier: layers of those still in the
    engine are not sent again. If the image `ahead` (the preloaded lower layers) is in the engine,
    only that one is considered. The image gets `names`, or the names in the layout. Raise
    `BuildError` if the engine ends up with another image.
    """
    listed = layout.index().manifests
    found = listed[0]
    manifest = layout.read_manifest(found)
    ids = (manifest.config.digest, found.digest)
    names = names or [d.annotations[archive.NAME] for d in listed if archive.NAME in d.annotations]
    if isinstance(client, podman.Podman):
        _into_podman(client, layout, found)
        for name in names:
            _podman(client, "tag", ids[0].removeprefix("sha256:"), name)
    else:
        known = _known(client, made, ahead)
        try:
            _send(client, layout, known)
            _require(client, names, ids)
        except EnvbuilderError:
            if not known:
                raise
            # The engine may have dropped a blob that it had.
            _send(client, layout, ())
    _require(client, names, ids)
    remember(layout, made)
    return ids


def remember(layout: Layout, made: Layout) -> None:
    """Record the manifests of a layout's images in `made`, for `load`."""
    folders.ensure(made.folder)
    for found in (*layout.index().manifests, *layout.images()):
        if found.media_type in MANIFESTS | INDEXES and layout.has(found):
            made.add(layout.read(found), found.media_type)


def _known(client: Any, made: Layout, ahead: str) -> set[words.Digest]:
    """Return the layers of recorded images that the engine still has, by their manifest digests."""
    there = engine.image(client, ahead) if ahead else None
    # Listing all images is slow: the engine adds up their sizes.
    ids = [there.id] if there else client.api.images(quiet=True)
    found: set[words.Digest] = set()
    for digest in ids:
        path = made.blob(digest)
        if path.is_file():
            data = path.read_bytes()
            with contextlib.suppress(EnvbuilderError):
                found |= _layers(data, made)
    return found


def _layers(data: bytes, made: Layout) -> set[words.Digest]:
    """Return the layers of a manifest, or of an index's manifests that are recorded."""
    if b'"layers"' in data:
        return {d.digest for d in decode(data, Manifest, "a manifest").layers}
    listed = decode(data, Index, "an index").manifests
    return {d.digest for m in listed if made.has(m) for d in made.read_manifest(m).layers}


def _send(client: Any, layout: Layout, known: Collection[words.Digest]) -> None:
    from docker.errors import APIError
    from requests import RequestException

    api = client.api
    usual, api.timeout = api.timeout, _SECONDS
    try:
        for said in api.load_image(archive.pieces(layout, known), quiet=True):
            if "error" in said or "message" in said:
                why = said.get("error") or said["message"]
                raise BuildError(f"the engine cannot load the image: {why}")
    except (APIError, RequestException) as error:
        raise BuildError(f"the engine cannot load the image: {engine.short(error)}") from error
    finally:
        api.timeout = usual


def _require(client: Any, names: Sequence[str], ids: Collection[words.Digest]) -> None:
    for name in names:
        there = engine.image(client, name)
        if there is None or there.id not in ids:
            raise BuildError(
                f"{name}: the engine has {there.id if there else 'no such image'} after it was"
                f" loaded, not {' or '.join(ids)}"
            )


def _into_podman(client: podman.Podman, layout: Layout, image: Descriptor) -> None:
    """Load an image without its names: podman loads nothing from an index of several entries.

    Podman reads blobs from the layout itself, and skips those it already has. A remote podman gets
    them all, in an archive.
    """
    with tempfile.TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch:
        alone = Layout(Path(scratch) / "image")
        alone.folder.mkdir()
        (alone.folder / MARK).symlink_to((layout.folder / MARK).resolve())
        (alone.folder / "blobs").symlink_to((layout.folder / "blobs").resolve())
        nameless = replace(image, annotations={})
        alone.write_index(Index(schema_version=2, media_type=INDEX, manifests=(nameless,)))
        if client.remote:
            archive.write(alone, Path(scratch) / "image.tar")
            _podman(client, "load", "--quiet", "--input", str(Path(scratch) / "image.tar"))
        else:
            # A relative path: podman cuts a path off at its first colon.
            _podman(client, "pull", "--quiet", "oci:image", cwd=Path(scratch))


def _podman(client: podman.Podman, *arguments: str, cwd: Path | None = None) -> None:
    done = process.run([*client.command, *arguments], timeout=_SECONDS, cwd=cwd)
    if done.returncode != 0:
        how = f"exit {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise BuildError(f"podman {arguments[0]}: {done.last_words or how}")
