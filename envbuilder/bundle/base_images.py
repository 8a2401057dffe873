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
from envbuilder.containers.engine import images as engines
from envbuilder.containers.oci import archive
from envbuilder.containers.oci import image_names as places
from envbuilder.containers.oci.descriptor import INDEX, JSON_LIMIT, Descriptor, Index, decode
from envbuilder.containers.oci.layout import Layout, place
from envbuilder.containers.registry import base_images as bases
from envbuilder.core import types as words
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import require_writable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.bundle.format import Member
    from envbuilder.bundle.read import Content
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


class Wanted(Struct, frozen=True, kw_only=True, order=True):
    """A base image for one platform: locked by digest, or any image with this name."""

    ref: str
    platform: words.Platform
    digest: words.Digest | None = None

    @property
    def name(self) -> str:
        """Return its name in an engine, without the digest, which cannot be part of a tag."""
        if places.on_disk(self.ref):
            return places.path(self.ref).name
        name = self.ref.partition("@")[0]
        return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class Packed(Struct, frozen=True, kw_only=True):
    """An available base image: the layout with its blobs, and the index that names it."""

    digest: words.Digest
    """The digest it is requested by: of its manifest, or of an index that lists it."""
    platform: words.Platform
    layout: Layout
    index: Index

    @property
    def file(self) -> str:
        """Return the name of its index in a bundle."""
        return f"{self.digest.removeprefix('sha256:')}-{self.platform.replace('/', '-')}.json"

    @property
    def blobs(self) -> tuple[words.Digest, ...]:
        """Return the digests of all its blobs."""
        return _blobs(self.layout, self.index.manifests[0], self.digest)


def _blobs(layout: Layout, image: Descriptor, digest: words.Digest) -> tuple[words.Digest, ...]:
    manifest = layout.read_manifest(image)
    found = (digest, image.digest, manifest.config.digest, *(d.digest for d in manifest.layers))
    return tuple(dict.fromkeys(found))


def collect(
    wanted: Iterable[Wanted], settings: Settings, progress: Progress
) -> tuple[tuple[Packed, ...], tuple[str, ...]]:
    """Collect the base images; return them and the names of those that are unavailable.

    The reason is only noted, not put into the bundle: it may name folders of this machine or
    depend on the time.
    """
    found, lacks = [], []
    for one in sorted(set(wanted), key=lambda w: (w.ref, w.platform)):
        try:
            found.append(_had(one, _obtain(one, settings, progress)))
        except EnvbuilderError as error:
            lack = f"the base image {one.name} for {one.platform}"
            progress.note(f"note: {lack} cannot be had: {error.message}")
            lacks.append(lack)
    return tuple(found), tuple(lacks)


def _obtain(one: Wanted, settings: Settings, progress: Progress) -> Layout:
    """Return a layout with the image: from this disk, the engine, or its registry."""
    folder = require_writable(settings.bases_dir)
    if places.on_disk(one.ref):
        return archive.opened(places.path(one.ref), folder)
    here = one.digest and bases.folder(one.digest, one.platform, settings).is_dir()
    layout = None if here else _of_engine(one, folder, progress)
    if layout is not None:
        return layout
    if one.digest is None:
        raise BuildError("no engine has it")
    progress.note(f"· get the base image {one.name}")
    return bases.obtain(one.name, one.digest, one.platform, settings, progress)


def _of_engine(one: Wanted, folder: Path, progress: Progress) -> Layout | None:
    try:
        connected = connection.connect()
    except ToolError:
        return None
    with connected as engine:
        image = engine.image(one.ref)
        if image is None:
            return None
        with progress.task(f"take the base image {one.name} from the engine"):
            return engines.export(engine, image, folder)


def _had(one: Wanted, layout: Layout) -> Packed:
    image = layout.find(one.platform)
    listed = one.digest is not None and layout.blob(one.digest).is_file()
    known = (
        image if places.on_disk(one.ref) else replace(image, annotations=archive.named(one.name))
    )
    return Packed(
        digest=one.digest if listed and one.digest else image.digest,
        platform=one.platform,
        layout=layout,
        index=Index(schema_version=2, media_type=INDEX, manifests=(known,)),
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


def read_index(member: Member, content: Content) -> Index:
    """Read the index of a base image; `InvalidError` if it lists anything but that image."""
    if member.size > JSON_LIMIT:
        raise InvalidError(f"{member.path}: too large: {member.size} bytes")
    index = decode(b"".join(content.checked()), Index, member.path)
    wanted = _platform(member.name)
    image = index.manifests[0] if len(index.manifests) == 1 else None
    if image is None or image.platform is None or not image.platform.is_of(wanted):
        raise InvalidError(f"{member.path}: lists other images than one for {wanted}")
    return index


def _platform(name: str) -> words.Platform:
    return next(p for p in words.PLATFORMS if name.endswith(f"{p.replace('/', '-')}.json"))


class Arriving:
    """Base images being unpacked from a bundle to where builds look for them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._layout = Layout.create(require_writable(settings.bases_dir) / "bundled")
        self._indexes: dict[str, Index] = {}

    def has(self, member: Member) -> bool:
        """Return whether a blob exists with the right hash; always False for an index."""
        path = self._blob(member)
        return path is not None and path.is_file() and file_sha256(path) == member.sha256

    def take(self, member: Member, content: Content) -> None:
        """Check and store one member; `OSError` on a full disk."""
        from filelock import FileLock

        path = self._blob(member)
        if path is None:
            self._indexes[member.name] = read_index(member, content)
            return
        part = self._layout.folder / "partial" / path.name
        part.parent.mkdir(exist_ok=True)
        with FileLock(f"{part}.lock"):
            try:
                with part.open("wb") as out:
                    for chunk in content.checked():
                        out.write(chunk)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)

    def place(self) -> tuple[tuple[Descriptor, Layout], ...]:
        """Make a layout for each image after all members were taken; return this machine's images.

        Raise `EnvbuilderError` if an image is incomplete.
        """
        own = words.container_platform(platform.machine()) or "linux/amd64"
        found = []
        for name, index in sorted(self._indexes.items()):
            image, layout = self._alone(name, index)
            if image.platform is not None and image.platform.is_of(own):
                found.append((image, layout))
        return tuple(found)

    def _alone(self, name: str, index: Index) -> tuple[Descriptor, Layout]:
        from filelock import FileLock

        digest, wanted, image = (
            f"sha256:{name.partition('-')[0]}",
            _platform(name),
            index.manifests[0],
        )
        target = bases.folder(digest, wanted, self._settings)
        with FileLock(f"{target}.lock"):
            layout = Layout.create(target)
            for blob in _blobs(self._layout, image, digest):
                path = self._layout.blob(blob)
                if not path.is_file():
                    raise InvalidError(f"bases/{name}: the bundle lacks {blob}")
                place(path, layout.blob(blob))
            layout.write_index(index)
        return image, layout

    def _blob(self, member: Member) -> Path | None:
        blob = member.path.startswith("bases/blobs/")
        return self._layout.blob(f"sha256:{member.sha256}") if blob else None


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
    there = engine.image(name)
    same = {image.digest, layout.read_manifest(image).config.digest}
    if there is not None and there.id in same:
        return True
    if there is not None and not force:
        progress.note(
            f"note: the engine has another image {name}, which stays; --force replaces it"
        )
        return False
    with (
        progress.task(f"load the base image {name}"),
        tempfile.TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch,
    ):
        engines.load(engine, layout, Layout.create(Path(scratch)))
    return True
