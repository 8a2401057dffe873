"""Make the layer of system packages, either by unpacking them or by having an engine install them.

Packages without maintainer scripts or configuration files are installed without dpkg, with the same
resulting files and records. The only trigger that they may activate is ldconfig's, because the
dynamic loader does not need ldconfig's cache for libraries in its default folders. Tests compare
the result with dpkg's.

For all other packages, an engine builds the Dockerfile's stage `system`, once for each base and set
of packages. The files that this stage adds to the base are cached as a layer like any other.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from envbuilder.builds import conventions, records
from envbuilder.builds.image.base import Added, BaseContents
from envbuilder.builds.image.layer_cache import SYSTEM_FORMAT, LayerCache
from envbuilder.containers.engine import connection, images
from envbuilder.containers.engine.interface import LABEL, Engine
from envbuilder.containers.oci import layer, rootfs
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import archives
from envbuilder.core.errors import BuildError, escaped
from envbuilder.packages.debian import deb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.builds.plan import Assemble, Step, System
    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File

_LAYER = "layer-system"
"""Name of this layer's work file. No other layer that is made at the same time uses this name."""
_PIECE = 1 << 20
_INFO = "var/lib/dpkg/info"
_OLD = re.compile(r"var/(lib/dpkg|cache/debconf)/[^/]+-old")
"""Matches backups of earlier states. The Dockerfile empties these files after running dpkg."""
_LOCKS = frozenset(f"var/lib/dpkg/{n}" for n in ("lock", "lock-frontend", "triggers/Lock"))
"""Empty lock files whose mtime is changed by dpkg."""
_LEFT_OUT = ("usr/share/doc/", "usr/share/man/")
"""Folders that are omitted. dpkg omits them as well when the Dockerfile runs it."""
_RECORDS = ("md5sums", "shlibs", "symbols", "triggers")
"""Control files of a package that dpkg keeps in addition to the list of its files."""
_RESERVED = (
    f"{conventions.PREFIX[1:]}/",
    f"{conventions.PYTHON[1:]}/",
    f"{conventions.OWN[1:]}/",
    f"{conventions.HOME[1:]}/",
    f"{conventions.WORK[1:]}/",
    "var/lib/dpkg/",
)
"""Folders into which no package may install files."""
_TRIGGER = "activate-noawait ldconfig"
# The order in which dpkg writes the fields it knows; others follow in the package's order.
_FIELDS = (
    "Package",
    "Essential",
    "Protected",
    "Status",
    "Priority",
    "Section",
    "Installed-Size",
    "Origin",
    "Maintainer",
    "Bugs",
    "Architecture",
    "Multi-Arch",
    "Source",
    "Version",
    "Config-Version",
    "Replaces",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Breaks",
    "Conflicts",
    "Enhances",
    "Conffiles",
    "Description",
)


def unpacked(
    step: Assemble,
    base: BaseContents,
    store: Store,
    cache: LayerCache,
    make: Callable[[Mapping[str, Any], tuple[layer.Member, ...]], layer.Layer],
) -> list[Added]:
    """Return the layer that contains the packages' files and dpkg records.

    Return an empty list if the base already contains all of the packages.
    """
    inputs = {
        "kind": "debs",
        "debs": [d.sha256 for d in step.debs],
        "base": base.config["rootfs"],
        "epoch": step.epoch,
    }
    packages = cache.find(inputs)
    if packages is None:
        files = unpacked_members([(d, store.checked(d)) for d in step.debs], base.root)
        if not files:
            return []
        packages = make(inputs, files)
    return [Added(layer=packages, reason=_reason(step.debs))]


def _reason(debs: Sequence[File]) -> str:
    """Return the packages' names and versions, which are the reason for adding their layer."""
    return ", ".join(f"{deb.name} {deb.version}" for deb in debs)


def built(
    step: Assemble,
    system: System,
    base: BaseContents,
    cache: LayerCache,
    work: Path,
    run: Callable[[Step], None],
) -> tuple[list[Added], rootfs.RootFs]:
    """Have an engine install the packages, and return their layer and the new root filesystem.

    The root filesystem is returned as an index of its files. Raise `BuildError` if the engine used
    a different base image.
    """
    inputs = {
        "kind": "system",
        "form": SYSTEM_FORMAT,
        "recipe": system.recipe,
        "base": base.config["rootfs"],
        "epoch": step.epoch,
    }

    def make() -> layer.Layer:
        for inner in system.steps:
            run(inner)
        return cache.keep(inputs, _taken(step, system, base, work), work / _LAYER)

    packages = cache.ensure(inputs, make)
    blob = cache.layout.blob(packages.digest)
    root = cache.remembered(
        {"kind": "listing", "base": base.config["rootfs"], "above": packages.diff_id},
        rootfs.RootFs,
        lambda: rootfs.over(base.root, blob),
    )
    return [Added(layer=packages, reason=_reason(step.debs))], root


def _taken(step: Assemble, system: System, base: BaseContents, work: Path) -> layer.Layer:
    """Return the single layer that the engine's image adds to the base, after recompressing it.

    Raise `BuildError` if the engine used a different base image, or if the layer is damaged.
    """
    if system.exported:
        layout = Layout.open(Path(system.exported))
    else:
        with connection.connect() as engine, _noted(engine, step, system.ref):
            layout = images.take(engine, system.ref, work / "system")
    manifest = layout.manifest(step.platform)
    base_ids = base.config["rootfs"]["diff_ids"]
    diff_ids = layout.read_config(manifest)["rootfs"]["diff_ids"]
    if diff_ids[:-1] != base_ids or len(manifest.layers) != len(diff_ids):
        raise BuildError(
            f"the engine installed the system packages on a base image other than {step.base}",
            "Build again: the base image may have been replaced in the engine during the build.",
        )
    blob = layout.checked(manifest.layers[-1])
    digest = hashlib.sha256()
    packed = layer.pack(_settled(blob, step.epoch, digest), work / _LAYER)
    if f"sha256:{digest.hexdigest()}" != diff_ids[-1]:
        raise BuildError(
            f"layer {manifest.layers[-1].digest} does not match the image's configuration"
        )
    return packed


def note(step: Assemble, ref: str, ids: tuple[str, ...]) -> Path:
    """Record an image that is in the engine only during this step.

    Return the path of the record, which allows the command `clean` to find the image.
    """
    loaded = records.LoadedImage(
        profile=step.labels.get(f"{LABEL}profile"),
        fingerprint=Path(step.records).name,
        ref=ref,
        ids=ids,
    )
    return records.note(Path(step.records), loaded)


@contextmanager
def _noted(engine: Engine, step: Assemble, ref: str) -> Iterator[None]:
    """Keep a record of the image `ref` while it is exported from the engine."""
    image = engine.image(ref)
    written = note(step, ref, (image.id,)) if image else None
    yield
    if written:
        written.unlink(missing_ok=True)


def _settled(blob: Path, epoch: int, digest: hashlib._Hash) -> Iterator[bytes]:
    """Yield the bytes of a layer's tar archive, without what the engine added to the layer.

    `digest` is updated with the original bytes. The Dockerfile leaves nothing newer than `epoch`.
    However, it cannot control the mount points that Buildah creates, or the deletion times that
    some engines record.
    """
    edits = list(_edits(blob, epoch))
    with blob.open("rb") as raw:
        tar = archives.unpacked(raw)
        at = 0

        def read(size: int) -> bytes:
            data = tar.read(size)
            digest.update(data)
            return data

        for start, end, replacement in edits:
            while at < start and (piece := read(min(_PIECE, start - at))):
                at += len(piece)
                yield piece
            at += len(read(end - at))
            yield replacement
        while piece := read(_PIECE):
            yield piece


def _edits(blob: Path, epoch: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the start, end and replacement of each byte range to change in a layer's tar archive.

    The replacement is empty if the range is to be dropped.
    """
    for member, _ in layer.members(blob):
        if member.name.rpartition("/")[2].startswith(".wh."):
            whiteout = tarfile.TarInfo(member.name)
            whiteout.mode = 0
            yield member.offset, member.offset_data, whiteout.tobuf(tarfile.PAX_FORMAT)
        elif member.mtime > epoch and not (member.isfile() and member.size):
            yield member.offset, member.offset_data, b""


# --- packages without dpkg


def unpacked_members(
    files: Sequence[tuple[File, Path]], root: rootfs.RootFs
) -> tuple[layer.Member, ...]:
    """Return the files that change in an image when .deb files are installed into it.

    Packages that the image already contains are skipped. Raise `BuildError` if a package cannot be
    installed just by unpacking its files.
    """
    status = root.contents.get(deb.STATUS)
    if status is None:
        raise BuildError(
            "the base image has no dpkg status file, so packages cannot be recorded in it",
            "Use a Debian base image (ENVBUILDER_BASE_IMAGE=REF), or --builder buildkit.",
        )
    stanzas: dict[tuple[str, str], str] = {}  # by dpkg's sort key
    for text in status.decode(errors="replace").split("\n\n"):
        if text.strip():
            fields = _fields(text)
            stanzas[fields.get("Package", ""), fields.get("Architecture", "")] = text.strip("\n")
    changed: dict[str, layer.Member] = {}
    for file, path in files:
        for member in _package(file, path, root, stanzas):
            before = changed.get(member.path)
            if before is not None and (before.kind, member.kind) != ("folder", "folder"):
                raise _refused(file, f"another package also contains /{member.path}")
            changed[member.path] = member
    if not changed:
        return ()
    dpkg_status = "".join(stanzas[k] + "\n\n" for k in sorted(stanzas))
    changed[deb.STATUS] = layer.Member(path=deb.STATUS, content=dpkg_status.encode())
    changed[f"{deb.STATUS}-old"] = layer.Member(path=f"{deb.STATUS}-old")
    for existing, entry in root.entries.items():
        if _OLD.fullmatch(existing) or existing in _LOCKS:
            changed[existing] = layer.Member(
                path=existing, mode=entry.mode, uid=entry.uid, gid=entry.gid
            )
    return tuple(changed.values())


def _package(
    file: File, path: Path, root: rootfs.RootFs, stanzas: dict[tuple[str, str], str]
) -> Iterator[layer.Member]:
    with deb.opened(file, path) as package:
        control = package.control()
        parts = {name: content for name, (content, _) in control.items()}
        fields = _fields(_control_text(file, parts.pop("control")).strip("\n"))
        deb.require_named(file, fields)
        _require_files_only(file, parts)
        key = (fields["Package"], fields["Architecture"])
        if key in stanzas:
            if _fields(stanzas[key]).get("Version") == fields["Version"]:
                return
            raise _refused(file, "the base image contains another version of this package")
        stanzas[key] = _installed(fields)
        data = package.data()
        contents: dict[str, bytes] = {}
        failure = partial(deb.refused, file)
        for name, member in archives.members(data, failure):
            if member.isreg():
                contents[name] = b"".join(data.pieces(member))
            elif member.islnk():
                contents[name] = contents[archives.member_path(member.linkname, failure)]
            else:
                contents[name] = b""
            if not name.startswith(_LEFT_OUT):
                yield from _placed(file, member, name, contents[name], root)
    same = fields.get("Multi-Arch") == "same"
    record = f"{_INFO}/{fields['Package']}" + (f":{fields['Architecture']}" if same else "")
    file_list = "".join(f"/{name}\n" for name in (".", *contents))
    yield layer.Member(path=f"{record}.list", content=file_list.encode())
    for kind, content in parts.items():
        yield layer.Member(path=f"{record}.{kind}", content=content, time=int(control[kind][1]))


def _require_files_only(file: File, parts: Mapping[str, bytes]) -> None:
    more = sorted(set(parts) - set(_RECORDS))
    if more:
        raise _refused(file, f"it has control files that only dpkg can process: {', '.join(more)}")
    for line in _control_text(file, parts.get("triggers", b"")).splitlines():
        trigger = line.strip()
        if trigger and trigger != _TRIGGER and not trigger.startswith("#"):
            raise _refused(file, "it activates triggers other than ldconfig")


def _refused(file: File, reason: str) -> BuildError:
    reason = escaped(reason, archives.LONGEST_REASON)
    return BuildError(
        f"{file.basename}: cannot be unpacked into an image: {reason}",
        "Use --builder buildkit.",
    )


def _placed(
    file: File, member: tarfile.TarInfo, name: str, content: bytes, root: rootfs.RootFs
) -> Iterator[layer.Member]:
    """Yield a package's file at its actual path in the base.

    Links in the base are followed, such as a link from `/lib` to `/usr/lib`.
    """
    folder, _, base = name.rpartition("/")
    path = f"{_resolved_folder(file, folder, root)}/{base}".lstrip("/")
    if path.startswith(_RESERVED) and not member.isdir():
        raise _refused(file, f"/{path} is in a folder reserved for envbuilder or dpkg")
    existing = root.entries.get(path)
    placed = layer.Member(
        path=path, mode=member.mode, uid=member.uid, gid=member.gid, time=int(member.mtime)
    )
    if member.isdir():
        if existing is None:
            yield replace(placed, kind="folder")
        return
    if existing is not None:
        raise _refused(file, f"/{path} already exists in the base image")
    if member.issym():
        yield replace(placed, kind="link", mode=0o777, target=member.linkname)
    else:
        yield replace(placed, content=content)


def _resolved_folder(file: File, folder: str, root: rootfs.RootFs) -> str:
    """Return the path of a folder in the base, after following the base's links.

    If the last components of the path do not exist in the base, they are kept unchanged.
    """
    parts = folder.split("/") if folder else []
    for depth in range(len(parts), -1, -1):
        parent = "/".join(parts[:depth])
        resolved = root.resolve(parent) if parent else ""
        if resolved is None and parent not in root.entries:
            continue
        if resolved is None or (resolved and root.entries[resolved].kind != "folder"):
            raise _refused(file, f"/{parent} of the base image is not a folder")
        return "/".join(filter(None, [resolved, *parts[depth:]]))
    raise AssertionError("unreachable: the root folder is a parent of every path")


def _control_text(file: File, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _refused(file, "a control file is not UTF-8 text") from error


# --- dpkg's text format


def _fields(stanza: str) -> dict[str, str]:
    """Parse a control stanza into its fields. Continuation lines are kept unchanged."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in {" ", "\t"} and name:
            fields[name] += f"\n{line}"
            continue
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    return fields


def _installed(fields: Mapping[str, str]) -> str:
    values = {**fields, "Status": "install ok installed"}
    order = [f for f in _FIELDS if f in values] + [f for f in values if f not in _FIELDS]
    return "\n".join(f"{name}: {values[name]}" for name in order)
