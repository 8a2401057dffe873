"""Base images by digest, fetched once: one OCI layout for each image and platform.

They are beside the store, not in it: an image is several blobs that come and go together, other
programs can read the folder, and `bundle` packs it as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.descriptor import INDEX, Descriptor, Index, decode
from envbuilder.containers.oci.layout import MARK, Layout
from envbuilder.containers.registry import manifests
from envbuilder.containers.registry import transfer as registry
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.core.http import full_or_broken
from envbuilder.core.settings import require_writable

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core import types as words
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


def folder(digest: words.Digest, platform: words.Platform, settings: Settings) -> Path:
    """Where a base image is, or would be. `digest` is that of its manifest, or of an index."""
    name = f"{digest.removeprefix('sha256:')}-{platform.replace('/', '-')}"
    return settings.cache_dir / "bases" / name


def obtain(
    ref: str,
    digest: words.Digest,
    platform: words.Platform,
    settings: Settings,
    progress: Progress,
) -> Layout:
    """The base image as a layout of one image, every blob checked now; fetched where it is missing.

    `ref` says which registry and repository has it; a tag in it does not matter, and a mirror of
    that registry is asked first. Needs no network once the image is here. Raises `BuildError` where
    it cannot be had, `InvalidError` where it is not for the platform.
    """
    from filelock import FileLock

    place = folder(digest, platform, settings)
    require_writable(place.parent)
    try:
        with FileLock(f"{place}.lock"):
            problem = _damage(place, digest, platform)
            if problem is None:
                return Layout(place)
            if problem:
                progress.note(f"warning: {problem}; it is fetched anew")
            (place / MARK).unlink(missing_ok=True)  # its index then is made anew, too
            layout = Layout.create(place)
            _pull(ref, digest, layout, platform, settings, progress)
            return layout
    except OSError as error:
        raise full_or_broken(error, place) from error


def _pull(
    ref: str,
    digest: words.Digest,
    layout: Layout,
    platform: words.Platform,
    settings: Settings,
    progress: Progress,
) -> None:
    """Pull from a mirror, or else from the registry itself: the digest says whether it is right."""
    problems: list[str] = []
    for place in reference.mirrored(reference.parse(ref), settings.configuration.mirrors):
        try:
            registry.pull(registry.connect(place, settings), digest, layout, platform, progress)
        except BuildError as error:
            problems.append(error.message)
            last = error
        else:
            return
    raise type(last)("; ".join(problems), last.hint)


def _damage(place: Path, digest: words.Digest, platform: words.Platform) -> str | None:
    """What is wrong with a base image, nothing where it was never complete; None: it is right."""
    if not (place / MARK).is_file():
        return ""
    try:
        layout = Layout.open(place)
        if not layout.index().manifests:
            return ""
        image = layout.find(platform)
        if image.digest != digest:
            _require_listed(layout, image, digest, platform)
        manifest = layout.read_manifest(image)
        for blob in (manifest.config, *manifest.layers):
            layout.checked(blob)
    except EnvbuilderError as error:
        return error.message
    return None


def _require_listed(
    layout: Layout, image: Descriptor, digest: words.Digest, platform: words.Platform
) -> None:
    """`InvalidError` where the digest is not that of an index that has this image."""
    path = layout.blob(digest)
    if not path.is_file():
        raise BuildError(f"{path}: missing")
    index = Descriptor(media_type=INDEX, digest=digest, size=path.stat().st_size)
    listed = decode(layout.read(index), Index, str(path))
    if manifests.choose(listed, platform, str(path)).digest != image.digest:
        raise InvalidError(f"{path}: does not list {image.digest}")
