"""The members of a layer from any source; a layer's names, sizes and compression are untrusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.core.tars import Tar

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator
    from pathlib import Path


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
