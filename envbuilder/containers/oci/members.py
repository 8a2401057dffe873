"""The members of a layer from any source; a layer's names, sizes and compression are untrusted."""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING

from envbuilder.core import archives
from envbuilder.core.archives import Tar
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.core import types


def members(layer: Path) -> Iterator[tuple[tarfile.TarInfo, Tar]]:
    """Yield each member of a layer, with the archive from which its content can be read at once.

    The layer is a tar, plain or compressed, detected by its first bytes, since media types can be
    wrong. Raise `InvalidError` if it is damaged or exceeds the limits.
    """

    def failure(reason: str) -> InvalidError:
        return InvalidError(f"{layer}: not a readable layer: {reason}")

    try:
        with layer.open("rb") as raw:
            archive = Tar(raw, layer.stat().st_size, failure)
            for member in archive:
                yield member, archive
    except OSError as error:
        raise failure(error.strerror or str(error)) from error


def diff_id(layer: IO[bytes], size: int, where: str) -> types.Digest:
    """Return the digest of a layer's decompressed bytes; raise `InvalidError` as `members` does.

    `size` is the size of the layer as it is, `where` names it in errors.
    """
    digest = hashlib.sha256()
    try:
        for piece in archives.pieces(archives.unpacked(layer), archives.unpacked_limit(size)):
            digest.update(piece)
    except archives.faults() as error:
        raise InvalidError(f"{where}: not a readable layer: {error}") from error
    return f"sha256:{digest.hexdigest()}"
