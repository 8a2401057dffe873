"""An OCI image layout on disk: `oci-layout`, `index.json` and `blobs/sha256/…`.

Blobs are hashed before an atomic rename adds them; `checked` hashes them again before use.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.containers.oci.descriptor import (
    INDEX,
    INDEXES,
    JSON_LIMIT,
    MANIFESTS,
    Descriptor,
    Index,
    Manifest,
    Platform,
    decode,
    digest_of,
    encode,
)
from envbuilder.core import files
from envbuilder.core.errors import BuildError, InvalidError, WrongHashError
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.core import types

MARK = "oci-layout"
_VERSION = {"imageLayoutVersion": "1.0.0"}
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_DEPTH = 4
"""Maximum depth of nested indexes that are followed."""
_MARK_LIMIT = 1 << 10
_FULL = "The disk may be full."


class Layout:
    """A folder of blobs by digest, with an index of the images they make up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> Layout:
        """Return the layout in `folder`, created empty if there is none."""
        layout = cls(folder)
        if not (folder / MARK).is_file():
            (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
            layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=()))
            files.save(folder / MARK, json.dumps(_VERSION).encode(), BuildError, _FULL)
        return layout

    @classmethod
    def open(cls, folder: Path) -> Layout:
        """Open an existing layout; raise `InvalidError` if `folder` is not one."""
        try:
            version = json.loads(files.read(folder / MARK, _MARK_LIMIT))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidError(
                f"{folder}: no OCI image layout (a folder with {MARK} and index.json)"
            ) from error
        if version != _VERSION:
            raise InvalidError(f"{folder}: an OCI image layout of an unknown version")
        layout = cls(folder)
        layout.index()
        return layout

    # --- blobs

    def blob(self, digest: types.Digest) -> Path:
        """Return the path of a blob, whether it exists or not."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise InvalidError(f"{digest!r}: not a sha256 digest")
        return self._blobs / match[1]

    @property
    def _blobs(self) -> Path:
        return self.folder / "blobs" / "sha256"

    def small(self, largest: int) -> list[types.Digest]:
        """Return the digests of blobs of at most `largest` bytes, the latest first."""
        times: dict[types.Digest, int] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._blobs) as entries:
            for entry in entries:
                # Other processes add and remove blobs meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if status.st_size <= largest and _DIGEST.fullmatch(f"sha256:{entry.name}"):
                        times[f"sha256:{entry.name}"] = status.st_mtime_ns
        return sorted(times, key=lambda digest: -times[digest])

    def has(self, of: Descriptor) -> bool:
        """Return whether a blob of this size is present; its bytes are not checked."""
        path = self.blob(of.digest)
        return path.is_file() and path.stat().st_size == of.size

    def add(self, content: bytes | Path, media_type: str, **fields: Any) -> Descriptor:
        """Add bytes or a file (by hard link if possible), and return their descriptor.

        `fields` are further fields of the descriptor. Raise `OSError` on a full disk.
        """
        if isinstance(content, bytes):
            digest, size = digest_of(content), len(content)
        else:
            digest, size = f"sha256:{file_sha256(content)}", content.stat().st_size
        descriptor = Descriptor(media_type=media_type, digest=digest, size=size, **fields)
        if self.has(descriptor):
            return descriptor
        target = self.blob(digest)
        if isinstance(content, bytes):
            files.write(target, content)
        else:
            place(content, target)
        return descriptor

    def checked(self, of: Descriptor) -> Path:
        """Return the path of a blob after checking its size and hash.

        Raise `BuildError` if it is missing, `WrongHashError` if it is damaged.
        """
        path = self.blob(of.digest)
        if not path.is_file():
            raise BuildError(f"{of.digest}: not in the OCI layout {self.folder}")
        size = path.stat().st_size
        if size != of.size:
            raise WrongHashError(
                f"{path}: damaged: {size} bytes, but {of.size} belong to {of.digest}"
            )
        found = file_sha256(path)
        if f"sha256:{found}" != of.digest:
            raise WrongHashError(f"{path}: damaged: expected {of.digest}, found sha256:{found}")
        return path

    def read(self, of: Descriptor) -> bytes:
        """Return the checked bytes of a small blob: a manifest, an index or a configuration."""
        if of.size > JSON_LIMIT:
            raise InvalidError(f"{of.digest}: {of.size} bytes; at most {JSON_LIMIT} are read")
        return self.checked(of).read_bytes()

    # --- images

    def index(self) -> Index:
        """Return the index of everything in the layout."""
        path = self.folder / "index.json"
        try:
            data = files.read(path, JSON_LIMIT)
        except OSError as error:
            raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
        return decode(data, Index, str(path))

    def write_index(self, index: Index) -> None:
        """Write the index atomically."""
        files.save(self.folder / "index.json", encode(index), BuildError, _FULL)

    def images(self) -> Iterator[Descriptor]:
        """Yield the manifests of the layout, also those in nested indexes, each with its platform.

        Artifacts that are not images (attestations, signatures) are left out.
        """
        for image in self._walk(self.index().manifests, _DEPTH, set()):
            platform = image.platform or self._platform(image)
            if platform and platform.os not in {"", "unknown"}:
                yield msgspec.structs.replace(image, platform=platform)

    def find(self, platform: types.Platform) -> Descriptor:
        """Return the only image for a platform; raise `InvalidError` unless there is just one."""
        images = list(self.images())
        fitting = [d for d in images if d.platform and d.platform.is_of(platform)]
        if len(fitting) == 1:
            return fitting[0]
        have = sorted({f"{d.platform.os}/{d.platform.architecture}" for d in images if d.platform})
        raise InvalidError(
            f"{self.folder}: holds {len(fitting) or 'no'} images for {platform}",
            f"It holds: {', '.join(have) or 'no image at all'}. One image for it is needed.",
        )

    def manifest(self, platform: types.Platform) -> Manifest:
        """Return the manifest of the only image for a platform."""
        return self.read_manifest(self.find(platform))

    def read_manifest(self, of: Descriptor) -> Manifest:
        """Return a manifest by its descriptor, checked."""
        return decode(self.read(of), Manifest, of.digest)

    def read_config(self, manifest: Manifest) -> dict[str, Any]:
        """Return the image configuration of a manifest: a JSON object, not validated further."""
        return decode(self.read(manifest.config), dict[str, Any], manifest.config.digest)

    def _walk(
        self, descriptors: tuple[Descriptor, ...], depth: int, seen: set[types.Digest]
    ) -> Iterator[Descriptor]:
        """Yield the manifests below some descriptors, each once: indexes can list one another."""
        for descriptor in descriptors:
            if descriptor.digest in seen:
                continue
            seen.add(descriptor.digest)
            if descriptor.media_type in MANIFESTS:
                yield descriptor
            elif descriptor.media_type in INDEXES and depth and self.has(descriptor):
                within = decode(self.read(descriptor), Index, descriptor.digest)
                # A layout need not hold all of an index: the other platforms may be elsewhere.
                held = tuple(d for d in within.manifests if self.has(d))
                yield from self._walk(held, depth - 1, seen)

    def _platform(self, of: Descriptor) -> Platform | None:
        """Return the platform that the image's configuration names, if any."""
        manifest = self.read_manifest(of)
        if not self.has(manifest.config):
            return None
        config = self.read_config(manifest)
        os_name, architecture = config.get("os"), config.get("architecture")
        if not isinstance(os_name, str) or not isinstance(architecture, str):
            return None
        return Platform(architecture=architecture, os=os_name)


def place(source: Path, target: Path, *, link: bool = True) -> None:
    """Put a file in place atomically, by hard link if possible; raise `OSError` on a full disk.

    Without `link`, it is copied.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
        part = Path(scratch) / "blob"
        if not (link and _linked(source, part)):
            shutil.copyfile(source, part)
        part.replace(target)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
