"""The layer that an engine made of system packages: the same whichever engine that was."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest
import zstandard

from envbuilder.build.image import system

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = 1000


def entry(
    name: str, time: int, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.mtime, made.size, made.type, made.linkname = time, len(content), kind, target
    return made, content


LONG = f"usr/{'x' * 150}"
PACKAGES = [
    entry("etc", EPOCH, kind=tarfile.DIRTYPE),
    entry(LONG, EPOCH - 1, b"content" * 300_000),
    entry("usr/link", EPOCH, kind=tarfile.SYMTYPE, target="x"),
    entry("usr/newer", EPOCH + 1, b"of a package that sets times itself"),
    entry("usr/none", EPOCH),
]


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def settled(blob: Path, data: bytes) -> bytes:
    blob.write_bytes(zstandard.compress(data))
    sent = hashlib.sha256()
    found = b"".join(system._settled(blob, EPOCH, sent))
    assert sent.hexdigest() == hashlib.sha256(data).hexdigest()
    return found


def test_a_layer_without_anything_of_the_engine_stays_as_it_is(tmp_path: Path) -> None:
    plain = tar(*PACKAGES)
    assert settled(tmp_path / "layer", plain) == plain


@pytest.mark.parametrize("moment", [0, EPOCH + 7, 2**33])
def test_what_the_engine_mounted_over_and_when_it_deleted_is_left_out(
    moment: int, tmp_path: Path
) -> None:
    plain = tar(*PACKAGES, entry("var/.wh.gone", 0))
    (first, *rest), late = PACKAGES, EPOCH + 1 + moment
    there = tar(
        first,
        entry("etc/hostname", late),
        entry("run", late, kind=tarfile.DIRTYPE),
        *rest,
        entry("var/.wh.gone", moment, target="left/from/the/one/before"),
    )
    found = settled(tmp_path / "layer", there)
    assert found != there
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        names = archive.getnames()
    assert names == [*(e.name for e, _ in PACKAGES), "var/.wh.gone"]
    length = len(found.rstrip(b"\0"))
    assert found[:length] == settled(tmp_path / "other", plain)[:length]
