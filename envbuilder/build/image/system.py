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

from envbuilder.build.image import debs, parts, records
from envbuilder.build.image.contents import Added, BaseContents
from envbuilder.build.image.layer_cache import SYSTEM_FORMAT, LayerCache
from envbuilder.containers.engine import connection, images
from envbuilder.containers.engine.interface import LABEL, Engine
from envbuilder.containers.oci import layer, rootfs
from envbuilder.containers.oci.layer import members
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import archives
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from envbuilder.build.plan import Assemble, Step, System
    from envbuilder.containers.oci.layer import Layer, Member
    from envbuilder.packages.store import Store

_LAYER = "layer-system"
"""A file of its own: other layers are made at the same time."""
_PIECE = 1 << 20


def unpacked(
    step: Assemble,
    base: BaseContents,
    store: Store,
    cache: LayerCache,
    make: Callable[[Mapping[str, Any], tuple[Member, ...]], Layer],
) -> list[Added]:
    """Return the layer of the packages' files and dpkg records; empty if the base has them all."""
    inputs = {
        "kind": "debs",
        "debs": [d.sha256 for d in step.debs],
        "base": base.config["rootfs"],
        "epoch": step.epoch,
    }
    packages = cache.find(inputs)
    if packages is None:
        files = debs.members([(d, store.checked(d)) for d in step.debs], base.root)
        if not files:
            return []
        packages = make(inputs, files)
    return [Added(layer=packages, reason=parts.packages(step.debs))]


def built(
    step: Assemble,
    system: System,
    base: BaseContents,
    cache: LayerCache,
    work: Path,
    run: Callable[[Step], None],
) -> tuple[list[Added], rootfs.RootFs]:
    """Return the layer that an engine makes by installing the packages, and the new rootfs index.

    Raise `BuildError` if the engine built on another base.
    """
    inputs = {
        "kind": "system",
        "form": SYSTEM_FORMAT,
        "recipe": system.recipe,
        "base": base.config["rootfs"],
        "epoch": step.epoch,
    }

    def make() -> Layer:
        for part in system.steps:
            run(part)
        return cache.keep(inputs, _taken(step, system, base, work), work / _LAYER)

    packages = cache.ensure(inputs, make)
    blob = cache.layout.blob(packages.digest)
    root = cache.remembered(
        {"kind": "listing", "base": base.config["rootfs"], "above": packages.diff_id},
        rootfs.RootFs,
        lambda: rootfs.over(base.root, blob),
    )
    return [Added(layer=packages, reason=parts.packages(step.debs))], root


def _taken(step: Assemble, system: System, base: BaseContents, work: Path) -> Layer:
    """Return the one layer that the engine's image has above the base, recompressed."""
    if system.exported:
        layout = Layout.open(Path(system.exported))
    else:
        with connection.connect() as engine, _noted(engine, step, system.ref):
            layout = images.take(engine, system.ref, work / "system")
    manifest = layout.manifest(step.platform)
    base_ids = base.config["rootfs"]["diff_ids"]
    diff_ids = layout.read_config(manifest)["rootfs"]["diff_ids"]
    if diff_ids[:-1] != base_ids or len(manifest.layers) != len(diff_ids):
        raise BuildError(
            f"the engine installed the system packages on a base other than {step.base}",
            "Build again: the base image may have been replaced in the engine meanwhile.",
        )
    blob = layout.checked(manifest.layers[-1])
    digest = hashlib.sha256()
    packed = layer.pack(_settled(blob, step.epoch, digest), work / _LAYER)
    if f"sha256:{digest.hexdigest()}" != diff_ids[-1]:
        raise BuildError(f"{manifest.layers[-1].digest}: does not match the image's configuration")
    return packed


def note(step: Assemble, ref: str, ids: tuple[str, ...]) -> Path:
    """Record for `clean` an image that the engine has only during this step; return the file."""
    loaded = records.LoadedImage(
        profile=step.labels.get(f"{LABEL}profile"),
        fingerprint=Path(step.records).name,
        ref=ref,
        ids=ids,
    )
    return records.note(Path(step.records), loaded)


@contextlib.contextmanager
def _noted(engine: Engine, step: Assemble, ref: str) -> Iterator[None]:
    """Keep a record of the image while it is exported from the engine."""
    image = engine.image(ref)
    written = note(step, ref, (image.id,)) if image else None
    yield
    if written:
        written.unlink(missing_ok=True)


def _settled(blob: Path, epoch: int, digest: hashlib._Hash) -> Iterator[bytes]:
    """Yield a layer's tar without what an engine adds on its own; `digest` hashes the original.

    The Dockerfile leaves nothing newer than `epoch`, but it has no control over the files and
    folders that Buildah uses as mount points, nor over the deletion times that some engines record.
    """
    edits = list(_edits(blob, epoch))
    with blob.open("rb") as raw:
        tar, at = archives.unpacked(raw), 0

        def read(size: int) -> bytes:
            data = tar.read(size)
            digest.update(data)
            return data

        for start, end, replacement in edits:
            while at < start and (piece := read(min(_PIECE, start - at))):
                at += len(piece)
                yield piece
            at += len(read(end - at))
            yield replacement
        while piece := read(_PIECE):
            yield piece


def _edits(blob: Path, epoch: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (start, end, replacement) of each header to replace or drop in the tar."""
    for member, _ in members(blob):
        if member.name.rpartition("/")[2].startswith(".wh."):
            whiteout = tarfile.TarInfo(member.name)
            whiteout.mode = 0
            yield member.offset, member.offset_data, whiteout.tobuf(tarfile.PAX_FORMAT)
        elif member.mtime > epoch and not (member.isfile() and member.size):
            yield member.offset, member.offset_data, b""
