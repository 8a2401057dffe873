"""Base images in a bundle: shared blobs by digest, and one small index per image."""

from __future__ import annotations

import contextlib
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.containers.engine import connection
from envbuilder.containers.engine import images as engine_images
from envbuilder.containers.oci import archive, image_names
from envbuilder.containers.oci import layout as oci_layout
from envbuilder.containers.oci.descriptor import INDEX, JSON_LIMIT, Descriptor, Index, decode
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import base_images
from envbuilder.core import types
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError
from envbuilder.core.settings import require_writable
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from envbuilder.bundle.format import Manifest, Member
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


class Needed(Struct, frozen=True, kw_only=True, order=True):
    """A base image for one platform: locked by digest, or any image with this name."""

    ref: str
    platform: types.Platform
    digest: types.Digest | None = None

    @property
    def name(self) -> str:
        """Return its name in an engine, without the digest, which cannot be part of a tag."""
        if image_names.on_disk(self.ref):
            return image_names.path(self.ref).name
        name = self.ref.partition("@")[0]
        return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class Packed(Struct, frozen=True, kw_only=True):
    """An available base image: the layout with its blobs, and the index that names it."""

    digest: types.Digest
    """The digest it is requested by: of its manifest, or of an index that lists it."""
    platform: types.Platform
    layout: Layout
    index: Index

    @property
    def file(self) -> str:
        """Return the name of its index in a bundle."""
        return f"{self.digest.removeprefix('sha256:')}-{self.platform.replace('/', '-')}.json"

    @property
    def blobs(self) -> tuple[types.Digest, ...]:
        """Return the digests of all its blobs."""
        return _blobs(self.layout, self.index.manifests[0], self.digest)


def _blobs(layout: Layout, image: Descriptor, digest: types.Digest) -> tuple[types.Digest, ...]:
    manifest = layout.read_manifest(image)
    found = (digest, image.digest, manifest.config.digest, *(d.digest for d in manifest.layers))
    return tuple(dict.fromkeys(found))


def collect(
    images: Iterable[Needed], settings: Settings, progress: Progress
) -> tuple[tuple[Packed, ...], tuple[str, ...]]:
    """Collect the base images; return them and the names of those that are unavailable.

    The reason is only noted, not put into the bundle: it may name folders of this machine or
    depend on the time.
    """
    packed, lacks = [], []
    for needed in sorted(set(images), key=lambda w: (w.ref, w.platform)):
        try:
            packed.append(_packed(needed, _obtain(needed, settings, progress)))
        except EnvbuilderError as error:
            lack = f"the base image {needed.name} for {needed.platform}"
            progress.note(f"note: {lack} is unavailable: {error.message}")
            lacks.append(lack)
    return tuple(packed), tuple(lacks)


def _obtain(needed: Needed, settings: Settings, progress: Progress) -> Layout:
    """Return a layout with the image: from this disk, the engine, or its registry."""
    folder = require_writable(settings.bases_dir)
    if image_names.on_disk(needed.ref):
        return archive.opened(image_names.path(needed.ref), folder)
    cached = needed.digest and base_images.is_present(needed.digest, needed.platform, settings)
    layout = None if cached else _of_engine(needed, folder, progress)
    if layout is not None:
        return layout
    if needed.digest is None:
        raise BuildError("no container engine has it")
    progress.note(f"· fetch the base image {needed.name}")
    return base_images.obtain(needed.name, needed.digest, needed.platform, settings, progress)


def _of_engine(needed: Needed, folder: Path, progress: Progress) -> Layout | None:
    try:
        connected = connection.connect()
    except ToolError:
        return None
    with connected as engine:
        image = engine.image(needed.ref)
        if image is None:
            return None
        with progress.task(f"export the base image {needed.name} from the engine"):
            return engine_images.export(engine, image, folder)


def _packed(needed: Needed, layout: Layout) -> Packed:
    image = layout.find(needed.platform)
    listed = needed.digest is not None and layout.blob(needed.digest).is_file()
    descriptor = (
        image
        if image_names.on_disk(needed.ref)
        else replace(image, annotations=archive.named(needed.name))
    )
    return Packed(
        digest=needed.digest if listed and needed.digest else image.digest,
        platform=needed.platform,
        layout=layout,
        index=Index(schema_version=2, media_type=INDEX, manifests=(descriptor,)),
    )


class Image(Struct, frozen=True, kw_only=True):
    """A base image for this machine that came out of a bundle."""

    name: str
    folder: str
    """The OCI layout that holds it and nothing else."""
    loaded: bool
    """Whether the engine has it under this name."""


def is_index(member: Member) -> bool:
    """Return whether a member of a bundle is the index of a base image."""
    return member.kind == "base" and member.path.endswith(".json")


def read_index(member: Member, content: Iterator[bytes]) -> Index:
    """Read the index of a base image; `InvalidError` if it lists anything but that image."""
    if member.size > JSON_LIMIT:
        raise InvalidError(f"{member.path}: too large: {member.size} bytes")
    index = decode(b"".join(content), Index, member.path)
    expected = _platform(member.name)
    image = index.manifests[0] if len(index.manifests) == 1 else None
    if image is None or image.platform is None or not image.platform.is_of(expected):
        raise InvalidError(f"{member.path}: must list exactly one image, for {expected}")
    return index


def _platform(name: str) -> types.Platform:
    return next(p for p in types.PLATFORMS if name.endswith(f"{p.replace('/', '-')}.json"))


def place(
    indexes: Mapping[str, Index], manifest: Manifest, settings: Settings
) -> tuple[tuple[Descriptor, Layout], ...]:
    """Make a layout for each image from blobs of the store; return this machine's images.

    `indexes`: by their name in the bundle. Raise `EnvbuilderError` if an image is incomplete.
    """
    native = types.container_platform(platform.machine()) or "linux/amd64"
    brought = {member.sha256 for member in manifest.members}
    images = []
    for name, index in sorted(indexes.items()):
        image = index.manifests[0]
        layout = _layout(name, index, brought, settings)
        if image.platform is not None and image.platform.is_of(native):
            images.append((image, layout))
    return tuple(images)


def _layout(name: str, index: Index, brought: Collection[str], settings: Settings) -> Layout:
    """Return a layout of one image, whose blobs are links to those of the store."""
    from filelock import FileLock

    store, digest, image = (
        Store.of(settings),
        f"sha256:{name.partition('-')[0]}",
        index.manifests[0],
    )
    target = base_images.folder(digest, _platform(name), settings)
    require_writable(settings.bases_dir)
    with FileLock(f"{target}.lock"):
        layout = Layout.create(target)

        def add(blob: types.Digest) -> None:
            sha256 = blob.removeprefix("sha256:")
            if sha256 not in brought:
                raise InvalidError(f"bases/{name}: the bundle lacks {blob}")
            oci_layout.place(store.path(sha256), layout.blob(blob))

        add(digest)
        add(image.digest)
        for blob in _blobs(layout, image, digest)[1:]:
            add(blob)
        layout.write_index(index)
    return layout


def load(
    arrived: Iterable[tuple[Descriptor, Layout]], progress: Progress, *, force: bool
) -> tuple[Image, ...]:
    """Load unpacked images into the engine, if it is reachable.

    An image that has the name in the engine already is kept, unless `force`.
    """
    arrived, images = tuple(arrived), list[Image]()
    with contextlib.ExitStack() as stack:
        engine: Engine | None = None
        if arrived:
            try:
                engine = stack.enter_context(connection.connect())
            except ToolError as error:
                progress.note(f"note: base images stay on disk: {error.message}")
        for image, layout in arrived:
            name = image.annotations.get(archive.NAME, "")
            loaded = bool(
                engine and name and _load(engine, name, image, layout, progress, force=force)
            )
            images.append(Image(name=name, folder=str(layout.folder), loaded=loaded))
    return tuple(images)


def _load(
    engine: Engine, name: str, image: Descriptor, layout: Layout, progress: Progress, *, force: bool
) -> bool:
    """Load an image, and return whether the engine has it now."""
    existing = engine.image(name)
    same = {image.digest, layout.read_manifest(image).config.digest}
    if existing is not None and existing.id in same:
        return True
    if existing is not None and not force:
        progress.note(
            f"note: the engine already has another image {name}, which is kept; --force replaces it"
        )
        return False
    with (
        progress.task(f"load the base image {name}"),
        tempfile.TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch,
    ):
        engine_images.load(engine, layout, Layout.create(Path(scratch)))
    return True
