"""Read a bundle from front to back; no content is trusted before its hash was checked."""

from __future__ import annotations

import hashlib
import io
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import msgspec

from envbuilder.bundle import format as bundle_format
from envbuilder.core import decoding
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.schema import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from envbuilder.bundle.format import Manifest, Member

_CHUNK = 1 << 20
_AGAIN = "It was damaged in transit or changed: copy it again from the machine that made it."


class Reader:
    """An open bundle: its manifest, and its members one after the other."""

    def __init__(self, stream: IO[bytes], where: Path) -> None:
        self._stream, self._where = stream, where
        self._size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        self.digest, self.manifest = self._manifest()
        self._first = stream.tell()

    def members(self, on_bytes: Callable[[int], None]) -> Iterator[tuple[Member, Content]]:
        """Yield each member with its content, which must be read or skipped before the next one.

        Raise `BuildError` naming the member if the bundle is damaged. Can be called repeatedly.
        """
        self._stream.seek(self._first)
        for member in self.manifest.members:
            self._expect(bundle_format.header(member.path, member.size), member.path)
            content = Content(self, member, on_bytes)
            yield member, content
            assert content.done, "a member's content must be read or skipped"
            self._expect(bundle_format.padding(member.size), member.path)
        if self._read(len(bundle_format.END) + 1) != bundle_format.END:
            raise self.damaged("its end")

    def damaged(self, what: str, why: str = "") -> BuildError:
        """Return the error for a part that does not match the manifest."""
        return BuildError(f"{self._where}: damaged: {what}{why and f': {why}'}", _AGAIN)

    def chunks(self, member: Member) -> Iterator[bytes]:
        """Yield the next bytes, as many as the member has."""
        remaining = member.size
        while remaining:
            chunk = self._read(min(_CHUNK, remaining))
            if not chunk:
                raise self.damaged(member.path, "the bundle ends in the middle of it")
            remaining -= len(chunk)
            yield chunk

    def skip(self, member: Member) -> None:
        """Skip the member's bytes."""
        if self._stream.seek(member.size, io.SEEK_CUR) > self._size:
            raise self.damaged(member.path, "the bundle ends in the middle of it")

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            raise BuildError(f"{self._where}: cannot be read: {error.strerror or error}") from error

    def _expect(self, expected: bytes, what: str) -> None:
        if self._read(len(expected)) != expected:
            raise self.damaged(what)

    def _manifest(self) -> tuple[str, Manifest]:
        block = self._read(bundle_format.BLOCK)
        stated = bundle_format.manifest_stated(block)
        if stated is None:
            raise InvalidError(
                f"{self._where}: not an envbuilder bundle", "Make one with: envbuilder bundle"
            )
        sha256, size = stated
        if size > bundle_format.LARGEST_MANIFEST or block != bundle_format.header(
            bundle_format.manifest_name(sha256), size
        ):
            raise self.damaged("its manifest")
        text = self._read(size)
        if hashlib.sha256(text).hexdigest() != sha256:
            raise self.damaged("its manifest")
        self._expect(bundle_format.padding(size), "its manifest")
        return sha256, parse(text, str(self._where))


class Content:
    """The bytes of one member."""

    def __init__(self, reader: Reader, member: Member, on_bytes: Callable[[int], None]) -> None:
        self._reader, self._member, self._on_bytes = reader, member, on_bytes
        self.done = False

    def unchecked(self) -> Iterator[bytes]:
        """Yield the bytes unchecked; the caller hashes them."""
        self.done = True
        for chunk in self._reader.chunks(self._member):
            self._on_bytes(len(chunk))
            yield chunk

    def checked(self) -> Iterator[bytes]:
        """Yield the bytes; `BuildError` after the last one if their hash is not the manifest's."""
        digest = hashlib.sha256()
        for chunk in self.unchecked():
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != self._member.sha256:
            raise self.wrong(digest.hexdigest())

    def skip(self) -> None:
        """Skip the bytes without reading them."""
        self.done = True
        self._on_bytes(self._member.size)
        self._reader.skip(self._member)

    def wrong(self, found: str) -> BuildError:
        """Return the error for bytes whose hash is `found` instead of the manifest's."""
        why = f"expected sha256 {self._member.sha256}, found {found}"
        return self._reader.damaged(f"{self._member.path} ({self._member.what})", why)


def parse(text: bytes, where: str) -> Manifest:
    """Parse a manifest; `InvalidError` if its schema is unknown or it is invalid."""
    try:
        data = decoding.strict_json(text)
    except ValueError as error:
        raise InvalidError(f"{where}: its manifest is not valid JSON: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    schemas = (bundle_format.SCHEMA, bundle_format.WITH_PROJECT)
    if schema not in schemas:
        raise InvalidError(
            f"{where}: bundle schema {str(schema)[:20]} is not known to this envbuilder (it knows"
            f" {' and '.join(map(str, schemas))})",
            "Install the envbuilder that is in the bundle: tar -xf FILE wheels, then"
            " pip install --no-index --find-links wheels envbuilder-ml",
        )
    try:
        manifest = decoding.convert(data, bundle_format.Manifest)
    except msgspec.ValidationError as error:
        raise explain(error, bundle_format.Manifest, where, "") from error
    wrong = bundle_format.problem(manifest)
    if wrong:
        raise InvalidError(f"{where}: its manifest is invalid: {wrong}")
    return manifest


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """Open the bundle in a file; `InvalidError` if it cannot be opened or is not a bundle."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not stream.seekable():
        stream.close()
        raise InvalidError(f"{path}: a pipe cannot be checked before it is used: give a file")
    with stream:
        yield Reader(stream, path)
