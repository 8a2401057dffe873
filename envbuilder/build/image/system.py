"""Make the layer of system packages: unpacked if they are only files, else built by an engine.

An engine builds the Dockerfile's stage `system` once per base and set of packages; what it adds to
the base is cached as a layer like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.build.image import debs, parts
from envbuilder.build.image import records as images
from envbuilder.build.image.config import Added
from envbuilder.build.image.layer_cache import SYSTEM_FORMAT
from envbuilder.containers.engine import connection
from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import layer, rootfs
from envbuilder.containers.oci.members import members, plain
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from envbuilder.build.image.base_layers import Base
    from envbuilder.build.image.layer_cache import LayerCache
    from envbuilder.build.plan import Assemble, Step, System
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.containers.oci.layer import Layer, Member
    from envbuilder.packages.store import Store

_PIECE = 1 << 20


def unpacked(
    step: Assemble,
    base: Base,
    store: Store,
    cache: LayerCache,
    make: Callable[[Mapping[str, Any], tuple[Member, ...]], Layer],
) -> list[Added]:
    """Return the layer of the packages' files and dpkg records; empty if the base has them all."""
    made_from = {
        "kind": "debs",
        "debs": [d.sha256 for d in step.debs],
        "base": base.config["rootfs"],
        "epoch": step.epoch,
    }
    found = cache.find(made_from)
    if found is None:
        files = debs.members([(d, store.checked(d)) for d in step.debs], base.root)
        if not files:
            return []
        found = make(made_from, files)
    return [Added(layer=found, reason=parts.packages(step.debs))]


def built(
    step: Assemble,
    system: System,
    base: Base,
    cache: LayerCache,
    work: Path,
    run: Callable[[Step], None],
) -> tuple[list[Added], rootfs.RootFs]:
    """Return the layer that an engine makes by installing the packages, and the new rootfs index.

    Raise `BuildError` if the engine built on another base.
    """
    made_from = {
        "kind": "system",
        "form": SYSTEM_FORMAT,
        "recipe": system.recipe,
        "base": base.config["rootfs"],
        "epoch": step.epoch,
    }
    found = cache.find(made_from)
    if found is None:
        for part in system.steps:
            run(part)
        made = _taken(step, system, base, work)
        found = cache.keep(made_from, made, work / "layer")
    blob = cache.layout.blob(found.digest)
    root = cache.remembered(
        {"kind": "listing", "base": base.config["rootfs"], "above": found.diff_id},
        rootfs.RootFs,
        lambda: rootfs.over(base.root, blob),
    )
    return [Added(layer=found, reason=parts.packages(step.debs))], root


def _taken(step: Assemble, system: System, base: Base, work: Path) -> Layer:
    """Export the one layer that the engine's image has above the base, and recompress it."""
    with connection.connect() as engine, _noted(engine, step, system.ref):
        layout = engines.take(engine, system.ref, work / "system")
    manifest = layout.manifest(step.platform)
    below = base.config["rootfs"]["diff_ids"]
    there = layout.read_config(manifest)["rootfs"]["diff_ids"]
    if there[:-1] != below or len(manifest.layers) != len(there):
        raise BuildError(
            f"the engine installed the system packages on another base than {step.base}",
            "Build again; the base image may have been replaced in the engine meanwhile.",
        )
    blob = layout.checked(manifest.layers[-1])
    sent = hashlib.sha256()
    made = layer.pack(_settled(blob, step.epoch, sent), work / "layer")
    if f"sha256:{sent.hexdigest()}" != there[-1]:
        raise BuildError(f"{manifest.layers[-1].digest}: not the layer that its image names")
    return made


def note(step: Assemble, ref: str, ids: tuple[str, ...]) -> Path:
    """Record for `clean` an image that the engine has only during this step; return the file."""
    loaded = images.LoadedImage(
        profile=step.labels.get(f"{LABEL}profile"),
        fingerprint=Path(step.records).name,
        ref=ref,
        ids=ids,
    )
    return images.note(Path(step.records), loaded)


@contextlib.contextmanager
def _noted(engine: Engine, step: Assemble, ref: str) -> Iterator[None]:
    """Keep a record of the image while it is exported from the engine."""
    image = engine.image(ref)
    written = note(step, ref, (image.id,)) if image else None
    yield
    if written:
        written.unlink(missing_ok=True)


def _settled(blob: Path, epoch: int, sent: hashlib._Hash) -> Iterator[bytes]:
    """Yield a layer's tar without what an engine adds on its own; `sent` hashes the original.

    The Dockerfile leaves nothing newer than `epoch`, but it has no control over the files and
    folders that Buildah uses as mount points, nor over the deletion times that some engines record.
    """
    edits = list(_edits(blob, epoch))
    with blob.open("rb") as raw:
        tar, at = plain(raw), 0

        def read(size: int) -> bytes:
            data = tar.read(size)
            sent.update(data)
            return data

        for start, end, instead in edits:
            while at < start and (piece := read(min(_PIECE, start - at))):
                at += len(piece)
                yield piece
            at += len(read(end - at))
            yield instead
        while piece := read(_PIECE):
            yield piece


def _edits(blob: Path, epoch: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (start, end, replacement) of each header to replace or drop in the tar."""
    for member, _ in members(blob):
        if member.name.rpartition("/")[2].startswith(".wh."):
            gone = tarfile.TarInfo(member.name)
            gone.mode = 0
            yield member.offset, member.offset_data, gone.tobuf(tarfile.PAX_FORMAT)
        elif member.mtime > epoch and not (member.isfile() and member.size):
            yield member.offset, member.offset_data, b""
