"""OCI layouts in a single tar archive, which `docker save` writes and `docker load` reads.

The archive also contains `manifest.json` for Docker's classic store and older tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.containers.oci.layer import Member, diff_id, gathered, tar
from envbuilder.containers.oci.layout import MARK, Descriptor, Layout, encode, place
from envbuilder.containers.oci.reference import qualified
from envbuilder.core import files, types
from envbuilder.core.archives import Tar
from envbuilder.core.errors import BuildError, InvalidError, WrongHashError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Collection, Iterable


NAME = "io.containerd.image.name"
"""Annotation from which the `load` commands of Docker and containerd take an image's name."""
_TAG = "org.opencontainers.image.ref.name"
_BLOBS = PurePosixPath("blobs/sha256")
_HEX = frozenset("0123456789abcdef")
_ON_DISK = "/var/tmp"  # noqa: S108 (/tmp is often in memory; the folder is private)
_EXPORT = 1 << 30
"""Assumed size in bytes of the archive that an engine sends, because the actual size is unknown.

With this size, at most 100 GiB of blobs are accepted.
"""


def named(ref: str) -> dict[str, str]:
    """Return the annotations for an index entry that give an image the name `ref`."""
    return {NAME: qualified(ref), _TAG: ref.rpartition(":")[2]}


def names(descriptors: Iterable[Descriptor]) -> list[str]:
    """Return the image names that the entries of an index contain."""
    return [d.annotations[NAME] for d in descriptors if NAME in d.annotations]


def pieces(layout: Layout, without: Collection[types.Digest] = ()) -> Iterator[bytes]:
    """Yield, in pieces, a tar archive that contains the only image in a layout.

    The blobs in `without` are left out.
    """
    descriptors = layout.index().manifests
    manifest = layout.read_manifest(descriptors[0])
    blobs = {d.digest for d in (descriptors[0], *manifest.blobs)} - set(without)
    classic = {
        "Config": _path(manifest.config.digest),
        "RepoTags": names(descriptors),
        "Layers": [_path(d.digest) for d in manifest.layers],
    }
    members = [Member(path=_path(d), source=layout.blob(d)) for d in blobs]
    members += [Member(path=n, source=layout.folder / n) for n in (MARK, "index.json")]
    members.append(Member(path="manifest.json", content=encode([classic])))
    # A fixed time: the same image gives the same archive.
    return gathered(tar(members, epoch=0))


def save(
    layout: Layout, target: Path, show: Callable[[int, int], object] = lambda done, total: None
) -> None:
    """Write a layout's only image to an archive if `target` ends in .tar, otherwise to a layout.

    In a layout, the image replaces images with the same names. Concurrent writers wait for each
    other, using the lock file `DIR.lock`. Files are copied and never linked, so that users cannot
    change the contents of a cache through `target`. `show` is called with the number of bytes
    written so far and the total number. Raise `OSError` if the disk is full.
    """
    if target.suffix == ".tar":
        write(layout, target, show)
        return
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        _add(layout, Layout.create(target), show)


def _add(layout: Layout, destination: Layout, show: Callable[[int, int], object]) -> None:
    descriptors = layout.index().manifests
    manifest = layout.read_manifest(descriptors[0])
    total = _size(layout)
    done = 0
    for blob in (descriptors[0], *manifest.blobs):
        show(done, total)
        done += blob.size
        with suppress(BuildError):
            destination.checked(blob)
            continue
        place(layout.checked(blob), destination.blob(blob.digest), link=False)
    replaced = {d.annotations.get(NAME) for d in descriptors}
    index = destination.index()
    others = tuple(d for d in index.manifests if d.annotations.get(NAME) not in replaced)
    destination.write_index(replace(index, manifests=(*others, *descriptors)))


def _size(layout: Layout) -> int:
    """Return the total size in bytes of the only image in a layout."""
    image = layout.index().manifests[0]
    return image.size + sum(blob.size for blob in layout.read_manifest(image).blobs)


def write(
    layout: Layout, path: Path, show: Callable[[int, int], object] = lambda done, total: None
) -> None:
    """Write the only image in a layout to an archive, which appears at `path` atomically.

    `show` is called with the number of bytes written so far and the total number. Raise `OSError`
    if the disk is full.
    """
    total = _size(layout)
    done = 0
    with files.appearing(path) as out:
        for piece in pieces(layout):
            files.write_all(out, piece)
            done += len(piece)
            show(min(done, total), total)


class Held(NamedTuple):
    """A verified image in a layout or an archive. All its digests have been checked."""

    digest: types.Digest
    """Digest of the image's configuration."""
    manifest: types.Digest
    names: frozenset[str]
    """The image's names in the index, each with its registry."""


def held(
    path: Path, accept: Callable[[dict[str, Any]], bool] = lambda config: True
) -> Iterator[Held]:
    """Yield the images at `path` whose configuration is accepted by `accept`.

    The layers of other images are not read. Raise `EnvbuilderError` if `path` is neither a layout
    nor an archive, if a blob is damaged, or if the layers in a manifest are not those that the
    image's configuration lists.
    """
    with _examined(path) as layout:
        for descriptor in layout.images():
            manifest = layout.read_manifest(descriptor)
            config = layout.read_config(manifest)
            if not accept(config):
                continue
            layers = [_diff_id(layout, blob) for blob in manifest.layers]
            root = config.get("rootfs")
            if not isinstance(root, dict) or root.get("diff_ids") != layers:
                raise WrongHashError(f"{path}: damaged: its layers do not match its configuration")
            matching = [d for d in layout.index().manifests if d.digest == descriptor.digest]
            yield Held(manifest.config.digest, descriptor.digest, frozenset(names(matching)))


def identity(path: Path) -> types.Digest:
    """Check the only image at `path`, and return the digest of its configuration.

    Raise `InvalidError` unless `path` contains exactly one image, and `EnvbuilderError` in the same
    cases as `held`.
    """
    images = [*held(path)]
    if len(images) != 1:
        raise InvalidError(f"{path}: expected one image, found {len(images) or 'none'}")
    return images[0].digest


def _diff_id(layout: Layout, blob: Descriptor) -> types.Digest:
    path = layout.checked(blob)
    with path.open("rb") as stream:
        return diff_id(stream, blob.size, str(path))


@contextmanager
def _examined(path: Path) -> Iterator[Layout]:
    """Yield the layout at `path`. If `path` is an archive, unpack it to a temporary folder."""
    if not path.is_file():
        yield Layout.open(path)
        return
    with TemporaryDirectory(dir=_ON_DISK) as scratch:
        yield unpack(path, Path(scratch) / "layout")


def opened(path: Path, folder: Path) -> Layout:
    """Return the layout at `path`. An archive is unpacked below `folder` first.

    If the same archive has been unpacked there before, it is not unpacked again.
    """
    if not path.is_file():
        return Layout.open(path)
    target = folder / files.file_sha256(path)
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
            unpack(path, Path(scratch) / "layout")
            move_into_place(Path(scratch) / "layout", target)
    return Layout.open(target)


def move_into_place(layout: Path, target: Path) -> None:
    """Move a finished layout to `target`, unless another process has already put a layout there."""
    try:
        layout.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def unpack(path: Path, folder: Path) -> Layout:
    """Unpack an archive to a layout in a new folder.

    Only the blobs (after verifying their digests), the index, and the file `oci-layout` are
    unpacked. Raise `InvalidError` if the file is not an archive of an OCI layout, and `BuildError`
    if it is damaged.
    """
    with files.explained(path), path.open("rb") as stream:
        return _received(stream, path.stat().st_size, folder, str(path))


def receive(stream: Iterator[bytes], folder: Path, where: str) -> Layout:
    """Unpack an archive like `unpack`, but read it from a stream of bytes that an engine sends."""
    return _received(cast("IO[bytes]", _Reader(stream)), _EXPORT, folder, where)


def _received(stream: IO[bytes], size: int, folder: Path, where: str) -> Layout:
    (folder / _BLOBS).mkdir(parents=True)
    archive = Tar(
        stream, size, lambda reason: InvalidError(f"{where}: not a tar archive: {reason}")
    )
    for member in archive:
        _unpack_member(archive, member, folder)
    try:
        return Layout.open(folder)
    except InvalidError as error:
        raise InvalidError(
            f"{where}: not an archive of an OCI layout",
            "To write one, use `docker save` of Docker 25 or newer, or skopeo with"
            " oci-archive:FILE.",
        ) from error


def _unpack_member(archive: Tar, member: tarfile.TarInfo, folder: Path) -> None:
    path = PurePosixPath(member.name)
    blob = path.parent == _BLOBS and len(path.name) == 64 and set(path.name) <= _HEX
    if not member.isreg() or not (blob or str(path) in {MARK, "index.json"}):
        return
    target = folder / path
    with target.open("wb") as out:
        out.writelines(archive.pieces(member))
    if blob and (actual := files.file_sha256(target)) != path.name:
        raise BuildError(f"{member.name}: damaged in the archive: its sha256 is {actual}")


def _path(digest: types.Digest) -> str:
    return str(_BLOBS / digest.rpartition(":")[2])


class _Reader(Struct):
    """A file-like object that reads its data from an iterator of bytes."""

    _stream: Iterator[bytes]
    _held: bytes = b""
    _last: bytes = b""

    def read(self, size: int) -> bytes:
        while len(self._held) < size and (piece := next(self._stream, b"")):
            self._held += piece
        data = self._held[:size]
        self._held = self._held[size:]
        self._last = data
        return data

    def seek(self, position: int) -> None:
        """Go back to the start, which is supported only after a single read."""
        assert position == 0, "nothing else is used"
        self._held = self._last + self._held
