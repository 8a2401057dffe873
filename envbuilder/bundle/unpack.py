"""Unpack a bundle: hash every byte before it is used, check everything before installing it."""

from __future__ import annotations

import contextlib
import difflib
import platform
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.builds import mnist
from envbuilder.bundle.collect import PROJECT, blobs
from envbuilder.bundle.format import (
    LARGEST_TEXT,
    SIGNED_TYPE,
    TEXTS,
    Manifest,
    Member,
    Reader,
    opened,
)
from envbuilder.containers.engine import connection, images as engine_images
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import JSON_LIMIT, Descriptor, Index, Layout, decode, place
from envbuilder.containers.registry import base_images
from envbuilder.core import files, resources, types
from envbuilder.core.errors import BuildError, InvalidError, ToolError
from envbuilder.core.settings import LOCKS, PROJECT_FILE, Settings, decoded, require_writable
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.sources.source_locker import bundled_sources
from envbuilder.packages.store import Room, Store, require_rooms
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import Library
from envbuilder.project.lines import read_bytes
from envbuilder.project.variants import ProjectProfiles
from envbuilder.signatures import statement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress
    from envbuilder.profiles.lock import File, Lock

_LINES = 40
"""Lines of a difference that are shown."""
_UNTRUSTED = "It was not made by envbuilder bundle, or was changed. Nothing was unpacked."


class Draft(Struct, frozen=True, kw_only=True):
    """A profile or lock to be written."""

    path: Path
    content: bytes
    why: str = ""
    """A remark to be shown with it."""


class LockDifference(Struct, frozen=True, kw_only=True):
    """A lock of a project that is not the one in a bundle."""

    path: str
    """In the project."""
    state: str
    """`missing` or `different`."""


class Image(Struct, frozen=True, kw_only=True):
    """A base image for this machine that came out of a bundle."""

    name: str
    folder: str
    """The OCI layout that holds it and nothing else."""
    loaded: bool
    """Whether the engine has it under this name."""


class Unpacked(Struct, frozen=True, kw_only=True):
    """The result of unpacking a bundle."""

    manifest: Manifest
    digest: str
    """sha256 of the manifest."""
    new: int
    """Number of stored files that were not on this machine before."""
    present: int
    """Number of files that were on this machine, with the right hash."""
    written: tuple[Draft, ...]
    """Profiles and locks that were written."""
    bases: tuple[Image, ...]
    """Base images for this machine."""
    signed: statement.Signed | None
    """The accepted signature, if one is required."""
    differences: tuple[LockDifference, ...]
    """Locks of the project that are not the bundle's; builds use the project's."""


def unpack(path: Path, settings: Settings, progress: Progress, *, force: bool) -> Unpacked:
    """Check a bundle and unpack it; a repeated run continues where the last one stopped.

    Profiles and locks are written last, when everything else is in place. Raise `BuildError` naming
    the damaged part, or for a full disk; `InvalidError` if it is not an envbuilder bundle, or if
    one of the user's files differs (see `drafts`); `SignatureError` if a required signature is
    missing or not accepted.
    """
    try:
        with opened(path) as reader:
            signed = _require_signed(path, reader.digest, settings)
            texts, indexes = _checked(reader)
            changes = drafts(texts, settings, progress.note, force=force)
            missing = (m.size for m in reader.manifest.members if not _is_stored(m, settings))
            room = Room(folder=str(settings.cache_dir), bytes=sum(missing))
            require_rooms([room])
            new, present = _store(reader, settings, progress)
            images = _laid_out(indexes, reader.manifest, settings)
            write(changes)
            return Unpacked(
                manifest=reader.manifest,
                digest=reader.digest,
                new=new,
                present=present,
                written=changes,
                bases=_loaded(images, progress, force=force),
                signed=signed,
                differences=_differences(texts, settings),
            )
    except OSError as error:
        raise files.full_or_broken(error, Path(error.filename or settings.cache_dir)) from error


def _require_signed(
    path: Path, manifest_digest: str, settings: Settings
) -> statement.Signed | None:
    """Return the signature of a bundle's manifest, which determines every byte of the bundle."""
    trusted = settings.configuration.signatures.bundles
    if trusted is None:
        return None
    from envbuilder.signatures import keys

    digests = {"sha256": manifest_digest}
    public_keys = keys.publics(trusted)
    beside = [statement.path_beside(path)]
    return statement.require(str(path), beside, public_keys, SIGNED_TYPE, digests)[1]


def _checked(reader: Reader) -> tuple[dict[str, bytes], dict[str, Index]]:
    """Check profiles, locks and indexes of base images before anything is stored.

    Return the texts by path, and the indexes by name.
    """
    texts: dict[str, bytes] = {}
    indexes: dict[str, Index] = {}
    for member, content in reader.members():
        if member.kind in TEXTS:
            texts[member.path] = b"".join(content)
        elif _is_index(member):
            indexes[member.name] = _read_index(member, content)
    check(reader.manifest, texts)
    return texts, indexes


def _is_stored(member: Member, settings: Settings) -> bool:
    """Return whether a file is on this machine, by its name alone."""
    if member.kind == "dataset":
        return mnist.has(member.name, settings)
    return Store.of(settings).has(member.sha256)


def _store(reader: Reader, settings: Settings, progress: Progress) -> tuple[int, int]:
    """Store the members that are missing or damaged; return how many were, and were not."""
    store = Store.of(settings)
    members = reader.manifest.members
    total = sum(m.size for m in members)
    new = 0
    present = 0
    with progress.task(f"unpack {len(members)} members", total, unit="bytes") as task:
        for member, content in reader.members(task.advance):
            if member.kind in TEXTS or _is_index(member):
                continue
            is_dataset = member.kind == "dataset"
            if mnist.has(member.name, settings) if is_dataset else store.sound(member.sha256):
                present += 1
                continue
            if is_dataset:
                mnist.take(member.name, content, settings)
            else:
                require_writable(settings.store_dir)
                store.take(member.sha256, content)
            new += 1
    return new, present


# --- profiles, locks, and the files of a project


def check(manifest: Manifest, texts: Mapping[str, bytes]) -> None:
    """Raise `InvalidError` if a bundle's profiles, locks and files are inconsistent.

    Every profile must be loadable, and be listed in the manifest or extended by one that is. Every
    lock must belong to such a profile, or to a project's variant of it, and match it. Every file of
    a project must be one that its environment is read from. Every locked file must be named by a
    lock, and each profile must have all files of a target. `texts`: path in the bundle → content.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-bundle-") as scratch:
        folder = Path(scratch)
        for path, content in texts.items():
            files.write(folder / path.removeprefix("profiles/"), content)
        try:
            needed, locked = _needed(manifest, folder)
            locks = [p for p in needed if p.startswith(("locks/", f"{PROJECT}/{LOCKS}/"))]
            for path in (f"{lock}{statement.SUFFIX}" for lock in locks):
                statement.read_file(folder / path)  # raises an error for a malformed one
                needed.add(path)
        except InvalidError as error:  # about a file of the scratch folder
            message = error.message.replace(f"{folder}/locks/", "the bundle's locks/")
            message = message.replace(f"{folder}/{PROJECT}/", "the bundle's project/")
            message = message.replace(f"{folder}/", "the bundle's profiles/")
            raise InvalidError(message, error.hints) from error
    stray = sorted(texts.keys() - needed)
    if stray:
        raise InvalidError(
            f"the bundle's {stray[0]} belongs to none of its profiles"
            f" ({', '.join(manifest.profiles)})",
            _UNTRUSTED,
        )
    for member in manifest.of_kind("file"):
        file = locked.get(member.sha256)
        if file is None or file.size not in {None, member.size}:
            raise InvalidError(f"no lock of the bundle names its {member.path}", _UNTRUSTED)


def _needed(manifest: Manifest, folder: Path) -> tuple[set[str], dict[str, File]]:
    """Return the paths that a manifest's profiles need, and their locked files by sha256."""
    needed: set[str] = set()
    locked: dict[str, File] = {}
    variants = None
    if manifest.environment is not None:
        # What the project's file configures has no effect.
        path = folder / PROJECT / PROJECT_FILE
        _, definition = decoded(files.read_text(path), path)
        if definition is None:
            raise InvalidError(f"{path}: lists no requirements")
        variants = ProjectProfiles(definition, manifest.environment, folder / PROJECT, [folder])
        needed |= {f"{PROJECT}/{file}" for file in (PROJECT_FILE, *variants.contents.read_from)}
        # The locks of the profiles themselves, of which the project has variants.
        unadapted = Library([folder])
        for name in manifest.profiles:
            if (folder / f"locks/{name}.json").is_file():
                unadapted.usable_lock(unadapted.profile(name))
                needed.add(f"locks/{name}.json")
    library = Library([folder], variants=variants)
    for name in manifest.profiles:
        profile = library.profile(name)
        lock = library.usable_lock(profile)
        (path,) = library.lock_places(name)
        needed |= {f"profiles/{p.name}" for p in profiles.chain(name, [folder])}
        needed.add(str(path.relative_to(folder)))
        interpreters = (t.interpreter for t in lock.targets if t.interpreter)
        sources = chain.from_iterable(bundled_sources(target) for target in lock.targets)
        locked |= {f.sha256: f for f in (*lock.files, *interpreters, *sources)}
        _require_target(manifest, lock, managed=profile.python.managed)
        conda = conda_lock.find(name, library)
        if conda is not None:
            conda_lock.require_usable(profile, conda)
            needed.add(str(conda_lock.beside(path).relative_to(folder)))
            packages = chain.from_iterable(target.packages for target in conda.targets)
            locked |= {p.sha256: p.as_file for p in packages}
    return needed, locked


def _require_target(manifest: Manifest, lock: Lock, *, managed: bool) -> None:
    """Raise `InvalidError` if a bundle has no complete target of a lock, with the tool for it."""
    brought = {m.sha256 for m in manifest.members}
    for target in lock.targets:
        asked = target.platform in manifest.platforms and target.python in manifest.pythons
        tools = (f for p, f in lock.tools.items() if p == target.platform)
        needed = (*target.fetched(managed=managed), *tools)
        if asked and all(f.sha256 in brought for f in needed):
            return
    raise InvalidError(f"the bundle lacks files of its profile '{lock.profile}'", _UNTRUSTED)


def drafts(
    texts: Mapping[str, bytes], settings: Settings, show: Callable[[str], None], *, force: bool
) -> tuple[Draft, ...]:
    """Return what must be written so that the bundle's profiles and locks take effect.

    Differences from existing files are shown, and raise `InvalidError` before anything is written.
    `force` permits replacing the user's own files, but never a project's.
    """
    folders = profiles.search_path(settings.project, settings.config_dir)
    user = settings.config_dir / "profiles"
    changes = []
    refused = []
    for path, content in texts.items():
        if path.startswith(f"{PROJECT}/"):
            continue
        below = path.removeprefix("profiles/")
        why = ""
        used = next((f / below for f in folders if (f / below).is_file()), None)
        if used is not None and (old := used.read_bytes()) == content:
            continue
        if used is not None and used.is_relative_to(resources.profiles_dir()):
            why = "overrides the shipped one"
        elif used is not None:
            show(_difference(old, content, used))
            if not force or used != user / below:
                refused.append(used)
        changes.append(Draft(path=user / below, content=content, why=why))
    if refused:
        replaceable = all(path.is_relative_to(user) for path in refused)
        raise InvalidError(
            f"differs from the bundle's version: {', '.join(map(str, refused))}",
            "Use --force to replace yours, or move them away."
            if replaceable
            else "A project's own files take precedence: run this outside of the project, or move"
            " them.",
        )
    return tuple(changes)


def write(changes: Iterable[Draft]) -> None:
    """Write the drafts, locks first, because a lock without its profile has no effect."""
    hint = "Set ENVBUILDER_CONFIG_DIR to a folder you can write to."
    for draft in sorted(changes, key=lambda d: d.path.suffix != ".json"):
        files.save(draft.path, draft.content, BuildError, hint)


def _difference(old: bytes, new: bytes, path: Path) -> str:
    before, after = (text.decode("utf-8", "replace").splitlines() for text in (old, new))
    lines = [*difflib.unified_diff(before, after, str(path), "the bundle's", lineterm="")]
    more = len(lines) - _LINES
    return "\n".join([*lines[:_LINES], *([f"… and {more} more lines"] if more > 0 else [])])


def _differences(texts: Mapping[str, bytes], settings: Settings) -> tuple[LockDifference, ...]:
    """Return the bundle's locks that the project of the working folder lacks, or has otherwise.

    Builds use the project's. Empty outside of a project.
    """
    if settings.project is None or settings.definition is None:
        return ()
    result = []
    for path, content in texts.items():
        relative = path.removeprefix(f"{PROJECT}/")
        if path.startswith(f"{PROJECT}/{LOCKS}/") and path.endswith(".json"):
            state = "missing"
            with contextlib.suppress(InvalidError):
                present = read_bytes(settings.project, relative, LARGEST_TEXT)
                state = "" if present == content else "different"
            if state:
                result.append(LockDifference(path=relative, state=state))
    return tuple(result)


# --- base images


def _is_index(member: Member) -> bool:
    """Return whether a member is the index of a base image."""
    return member.kind == "base" and member.path.endswith(".json")


def _read_index(member: Member, content: Iterator[bytes]) -> Index:
    """Read the index of a base image; `InvalidError` if it lists anything but that image."""
    if member.size > JSON_LIMIT:
        raise InvalidError(f"{member.path}: too large: {member.size} bytes")
    index = decode(b"".join(content), Index, member.path)
    expected = _platform(member.name)
    image = index.manifests[0] if len(index.manifests) == 1 else None
    if image is None or image.platform is None or not image.platform.is_of(expected):
        raise InvalidError(f"{member.path}: must list exactly one image, for {expected}")
    return index


def _platform(name: str) -> types.Platform:
    return next(p for p in types.PLATFORMS if name.endswith(f"{p.replace('/', '-')}.json"))


def _laid_out(
    indexes: Mapping[str, Index], manifest: Manifest, settings: Settings
) -> tuple[tuple[Descriptor, Layout], ...]:
    """Make a layout for each base image from blobs of the store; return this machine's images.

    Raise `EnvbuilderError` if an image is incomplete.
    """
    native = types.container_platform(platform.machine()) or "linux/amd64"
    bundled = {member.sha256 for member in manifest.members}
    result = []
    for name, index in sorted(indexes.items()):
        layout = _layout(name, index, bundled, settings)
        image = index.manifests[0]
        if image.platform is not None and image.platform.is_of(native):
            result.append((image, layout))
    return tuple(result)


def _layout(name: str, index: Index, bundled: Collection[str], settings: Settings) -> Layout:
    """Return a layout of one image, whose blobs are links to those of the store."""
    from filelock import FileLock

    digest = f"sha256:{name.partition('-')[0]}"
    image = index.manifests[0]
    store = Store.of(settings)
    require_writable(settings.bases_dir)
    folder = base_images.folder(settings.cache_dir, digest, _platform(name))
    with FileLock(f"{folder}.lock"):
        layout = Layout.create(folder)

        def add(blob: types.Digest) -> None:
            sha256 = blob.removeprefix("sha256:")
            if sha256 not in bundled:
                raise InvalidError(f"bases/{name}: the bundle lacks {blob}")
            place(store.path(sha256), layout.blob(blob))

        add(image.digest)
        for blob in blobs(layout, image, digest):
            add(blob)
        layout.write_index(index)
    return layout


def _loaded(
    images: Collection[tuple[Descriptor, Layout]], progress: Progress, *, force: bool
) -> tuple[Image, ...]:
    """Load unpacked images into the engine, if it is reachable.

    An image that has the name in the engine already is kept, unless `force`.
    """
    named = [(image, layout, image.annotations.get(archive.NAME, "")) for image, layout in images]
    loaded = set[str]()
    if images:
        try:
            with connection.connect() as engine:
                for image, layout, name in named:
                    if name and _load(engine, name, image, layout, progress, force=force):
                        loaded.add(name)
        except ToolError as error:
            progress.note(f"note: base images stay on disk: {error.message}")
    return tuple(
        Image(name=name, folder=str(layout.folder), loaded=name in loaded)
        for _, layout, name in named
    )


def _load(
    engine: Engine, name: str, image: Descriptor, layout: Layout, progress: Progress, *, force: bool
) -> bool:
    """Load an image, and return whether the engine has it now."""
    existing = engine.image(name)
    if existing is not None:
        if existing.id in {image.digest, layout.read_manifest(image).config.digest}:
            return True
        if not force:
            progress.note(
                f"note: the engine already has another image {name}, which is kept;"
                " --force replaces it"
            )
            return False
    with (
        progress.task(f"load the base image {name}"),
        tempfile.TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch,
    ):
        engine_images.load(engine, layout, Layout.create(Path(scratch)))
    return True
