"""Base images by digest, pulled once: one OCI layout per image and platform.

They are stored beside the store, not in it: an image is several blobs that come and go together,
other programs can read the folder, and `bundle` packs it as is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import (
    INDEX,
    MARK,
    Descriptor,
    Index,
    Layout,
    decode,
    only_image,
)
from envbuilder.containers.registry import transfer
from envbuilder.core.errors import BuildError, EnvbuilderError, Hint, InvalidError
from envbuilder.core.files import full_or_broken
from envbuilder.core.settings import Settings, require_writable

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core import types
    from envbuilder.core.console import Progress

WAY_OUT = (
    "Or use an image you have: --base-image REF; or a mirror: mirrors: in envbuilder.yaml"
    " (docs/guides/mirrors.md)."
)
"""What to do if a base image cannot be pulled."""


def folder(root: Path, digest: types.Digest, platform: types.Platform) -> Path:
    """Return the path of a base image in a cache, present or not.

    `digest` names its manifest or an index.
    """
    return root / "bases" / f"{digest.removeprefix('sha256:')}-{platform.replace('/', '-')}"


def is_present(digest: types.Digest, platform: types.Platform, settings: Settings) -> bool:
    """Return whether a base image is on this disk; its bytes are not checked."""
    roots = filter(None, (settings.cache_dir, settings.shared_store))
    marks = (folder(root, digest, platform) / MARK for root in roots)
    return any(os.path.isfile(mark) for mark in marks)  # noqa: PTH113 (a closed folder is no error)


def _intact(digest: types.Digest, platform: types.Platform, settings: Settings) -> Layout | None:
    """Return a base image that is on this disk with the right bytes, the user's or a shared one."""
    for root in filter(None, (settings.cache_dir, settings.shared_store)):
        place = folder(root, digest, platform)
        try:
            if _damage(place, digest, platform) is None:
                return Layout(place)
        except OSError:  # another user's that cannot be read
            continue
    return None


def obtain(
    ref: str,
    digest: types.Digest,
    platform: types.Platform,
    settings: Settings,
    progress: Progress,
) -> Layout:
    """Return the base image as a layout of one image, every blob checked; pull it if missing.

    `ref` names the registry and repository; a tag in it is ignored, and a mirror of that registry
    is tried first. Needs no network once the image is present. Raise `BuildError` if it cannot be
    obtained, `InvalidError` if it is not for the platform.
    """
    from filelock import FileLock

    place = folder(settings.cache_dir, digest, platform)
    require_writable(place.parent)
    try:
        with FileLock(f"{place}.lock"):
            if layout := _intact(digest, platform, settings):
                return layout
            if problem := _damage(place, digest, platform):
                progress.note(f"warning: {problem}; it is fetched again")
            (place / MARK).unlink(missing_ok=True)  # so that its index is recreated, too
            layout = Layout.create(place)
            _pull(ref, digest, layout, platform, settings, progress)
            return layout
    except OSError as error:
        raise full_or_broken(error, place) from error


def _pull(
    ref: str,
    digest: types.Digest,
    layout: Layout,
    platform: types.Platform,
    settings: Settings,
    progress: Progress,
) -> None:
    """Pull from a mirror, or else from the registry itself; the digest verifies either."""
    problems: list[str] = []
    for place in reference.mirrored(reference.parse(ref), settings.configuration.mirrors):
        try:
            transfer.pull(transfer.connect(place, settings), digest, layout, platform, progress)
        except BuildError as error:
            problems.append(error.message)
            last = error
        else:
            return
    raise type(last)("; ".join(problems), (*last.hints, Hint(WAY_OUT)))


def _damage(place: Path, digest: types.Digest, platform: types.Platform) -> str | None:
    """Return what is wrong with a base image: None if intact, empty if it was never complete."""
    if not (place / MARK).is_file():
        return ""
    try:
        layout = Layout.open(place)
        if not layout.index().manifests:
            return ""
        image = layout.find(platform)
        if image.digest != digest:
            _require_listed(layout, image, digest, platform)
        for blob in layout.read_manifest(image).blobs:
            layout.checked(blob)
    except EnvbuilderError as error:
        return error.message
    return None


def _require_listed(
    layout: Layout, image: Descriptor, digest: types.Digest, platform: types.Platform
) -> None:
    """Raise `BuildError` if the index is missing, `InvalidError` if it does not list the image."""
    path = layout.blob(digest)
    if not path.is_file():
        raise BuildError(f"{path}: missing")
    index = Descriptor(media_type=INDEX, digest=digest, size=path.stat().st_size)
    listed = decode(layout.read(index), Index, str(path))
    if only_image(listed.manifests, platform, str(path)).digest != image.digest:
        raise InvalidError(f"{path}: does not list {image.digest}")
