"""The contents of a bundle, which are collected on one machine and unpacked on another.

During unpacking, every byte is hashed before it is used, and all contents are checked before any of
them is installed.

This module is long because collecting and unpacking follow the same rules.
"""

from __future__ import annotations

import hashlib
import platform as machine
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder import __version__
from envbuilder.builds import mnist
from envbuilder.bundle import self_wheel
from envbuilder.bundle.format import (
    LARGEST_TEXT,
    SCHEMA,
    SIGNED_TYPE,
    TEXTS,
    WITH_PROJECT,
    Kind,
    Manifest,
    Member,
    Part,
    Reader,
    opened,
    order,
    problem,
)
from envbuilder.containers.engine import connection, images as engine_images
from envbuilder.containers.oci import archive, reference
from envbuilder.containers.oci.layout import (
    INDEX,
    JSON_LIMIT,
    Descriptor,
    Index,
    Layout,
    decode,
    encode,
    place,
)
from envbuilder.containers.registry import transfer
from envbuilder.core import files, publishable, resources, signatures, types
from envbuilder.core.decoding import error_at
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError, is_public
from envbuilder.core.files import read_text
from envbuilder.core.settings import LOCKS, PROJECT_FILE, Settings, decoded, require_writable
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.sources.source import require_public
from envbuilder.packages.sources.source_locker import bundled_sources, fetch
from envbuilder.packages.store import Room, Store, download_room, require_rooms
from envbuilder.profiles import (
    lock as profile_lock,
    profile as profiles,
)
from envbuilder.profiles.library import Library, signature_of
from envbuilder.profiles.lock import File, Lock, Target
from envbuilder.profiles.profile import Profile
from envbuilder.project.lines import read_bytes
from envbuilder.project.variants import ProjectProfiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress

PROJECT = "project"
"""The folder in a bundle that contains a project's files and locks. Paths relative to this folder
are the same as in the project."""


class Selection(Struct, frozen=True, kw_only=True):
    """A profile to pack, with its lock and the requested targets."""

    profile: Profile
    lock: Lock
    targets: tuple[Target, ...]
    tools: tuple[File, ...]
    """The lock's uv, once for each requested platform."""
    conda: tuple[conda_lock.Target, ...] = ()
    """The requested targets in the conda lock. Empty if the profile has no conda lock."""


def select(
    names: Sequence[str],
    platforms: Sequence[types.Platform],
    pythons: Sequence[str],
    library: Library,
) -> tuple[Selection, ...]:
    """Return the requested profiles with their locks and targets.

    Without `pythons`, select each profile's default Python version and the Python version of its
    image. If a profile does not support one of the platforms, assume that machines of this platform
    build images for other platforms, and select only the tools for this platform. Raise
    `InvalidError` if a profile does not exist, or if it supports none of the platforms.
    """
    selections: dict[str, Selection] = {}
    for name in names:
        profile = library.named(name)
        lock = library.usable_lock(profile)
        usual = (profile.python.default, profile.image_python)
        targets: list[Target] = []
        tools: list[File] = []
        for platform in dict.fromkeys(platforms):
            tools.append(lock.tool(platform))
            if platform in profile.platforms:
                versions = dict.fromkeys(pythons or usual)
                targets += [profile_lock.select(lock, platform, p) for p in versions]
        if not targets:
            raise InvalidError(
                f"profile '{profile.name}' does not support {', '.join(platforms)}",
                f"It supports {', '.join(profile.platforms)}: name them with --platform.",
            )
        selections[profile.name] = Selection(
            profile=profile,
            lock=lock,
            targets=tuple(targets),
            tools=tuple(tools),
            conda=_conda(profile, targets, library),
        )
    return tuple(selections.values())


def _conda(
    profile: Profile, targets: Iterable[Target], library: Library
) -> tuple[conda_lock.Target, ...]:
    """Return the targets in a profile's conda lock that correspond to `targets`.

    Targets correspond if they have the same platform and Python version. Return an empty tuple if
    there is no conda lock. Raise `InvalidError` if the lock is stale, and `SignatureError` if a
    required signature is missing or not accepted.
    """
    stored = conda_lock.find_for_use(profile.name, library)
    if stored is None:
        return ()
    lock = conda_lock.require_usable(profile, stored)
    pairs = {(t.platform, t.python) for t in targets}
    return tuple(t for t in lock.targets if (t.platform, t.python) in pairs)


# --- profiles and locks


def texts(
    selections: Iterable[Selection],
    library: Library,
    variants: ProjectProfiles | None = None,
    project: Path | None = None,
) -> tuple[Part, ...]:
    """Return parts for the profiles, for the profiles that they extend, and for their locks.

    The files are packed byte for byte. In a project, also return parts for the project's locks and
    for the files that define the project. Raise `InvalidError` if the project file contains
    credentials.
    """
    folders = library.folders
    parts: list[Part] = []
    for selection in selections:
        name = selection.profile.name
        for path in profiles.chain(name, folders):
            content = read_text(path).encode()
            parts.append(of_bytes(f"profiles/{path.name}", content, "profile", "profile"))
        profile_path = _own_lock(name, folders, fresh=variants is not None)
        if variants is None:
            conda = conda_lock.path_for(name, Library(folders)) if selection.conda else None
            parts += _of_locks((profile_path, conda), folders)
        else:
            wheels = variants.lock_path(name)
            conda = conda_lock.beside(wheels) if selection.conda else None
            parts += _of_locks((profile_path,), folders)
            parts += _of_locks((wheels, conda), folders, f"{PROJECT}/{LOCKS}", "project")
    if variants is not None and project is not None:
        _require_public(project / PROJECT_FILE)
        for file in (PROJECT_FILE, *variants.contents.read_from):
            content = read_bytes(project, file, LARGEST_TEXT)
            parts.append(of_bytes(f"{PROJECT}/{file}", content, "project", "project's file"))
    return tuple({part.member.path: part for part in parts}.values())


def _own_lock(name: str, folders: Sequence[Path], *, fresh: bool) -> Path | None:
    """Return the path of a profile's own lock, or None if the profile has no lock.

    If `fresh` is true, also return None if the lock is not usable. The bundle of a project contains
    the profile's own lock because `check` compares the project's locks with it.
    """
    path = profile_lock.path_for(name, folders)
    if fresh:
        try:
            lock = profile_lock.load(path) if path else None
            profile_lock.require_usable(profiles.load(name, folders), lock)
        except InvalidError:
            return None
    return path


def _of_locks(
    locks: Iterable[Path | None],
    folders: Sequence[Path],
    below: str = "locks",
    kind: Kind = "lock",
) -> Iterator[Part]:
    """Yield parts that contain the locks and their signatures byte for byte."""
    for lock in filter(None, locks):
        for path in filter(None, (lock, signature_of(lock, folders))):
            content = profile_lock.content(path, ("lock",))
            yield of_bytes(f"{below}/{path.name}", content, kind, "lock")


def _require_public(path: Path) -> None:
    """Raise `InvalidError` if the project file contains a URL with credentials."""
    text = read_text(path)
    configuration, _ = decoded(text, path)
    for name, url in configuration.indexes.items():
        if not is_public(url):
            raise error_at(
                PROJECT_FILE,
                text,
                ["indexes", name],
                "the URL contains credentials, which the bundle would share",
                "Move it to config.yaml in your configuration folder, or to your ~/.netrc.",
            )


# --- files


def locked_files(
    selections: Sequence[Selection], settings: Settings, progress: Progress
) -> tuple[File, ...]:
    """Return the locked files of all targets and tools, each file once.

    Files that are missing from the store are fetched.
    """
    groups: list[tuple[Target, list[File]]] = []
    for selection in selections:
        managed = selection.profile.python.managed
        for target in selection.targets:
            groups += [(target, [*target.fetched(managed=managed), *bundled_sources(target)])]
    others: list[File] = []
    for selection in selections:
        others += selection.tools
        for conda in selection.conda:
            others += [package.as_file for package in conda.packages]
    groups.append((groups[0][0], others))
    locked: dict[str, File] = {}
    for _, group in groups:
        locked |= {file.sha256: file for file in group}
    require_rooms([download_room(locked.values(), settings)])
    for target, group in groups:
        fetch(tuple({f.sha256: f for f in group}.values()), target, settings, progress)
    return tuple(locked.values())


def of_files(locked: Iterable[File], settings: Settings, apart: Iterable[str]) -> tuple[Part, ...]:
    """Return parts for locked files, except for the files whose sha256 is in `apart`.

    Raise `InvalidError` if one of the files was packed from a project folder and this folder
    contains a credential.
    """
    excluded = set(apart)
    store = Store.of(settings)
    locked = tuple(locked)
    for file in locked:
        if file.kind == "source" and file.recipe and file.recipe.kind == "path":
            require_public(file.recipe, settings)
    return tuple(
        _stored(f"files/{f.sha256}", f, "file", store) for f in locked if f.sha256 not in excluded
    )


def dataset(settings: Settings, progress: Progress) -> tuple[Part, ...]:
    """Return parts for the four files of MNIST.

    Return an empty tuple if the complete data set is unavailable.
    """
    samples = mnist.obtain(settings, progress)
    if samples.subset:
        return ()
    return tuple(
        _of_path(f"datasets/mnist/{name}", samples.folder / name, sha256, "dataset", "MNIST")
        for name, sha256 in sorted(mnist.SHA256.items())
    )


def of_envbuilder(
    selections: Sequence[Selection],
    platforms: Iterable[types.Platform],
    settings: Settings,
    progress: Progress,
) -> tuple[Part, ...]:
    """Return parts for the wheels of envbuilder and its dependencies.

    The dependencies are those for the given platforms and for the Python versions of the selected
    targets. The locked uv is included. If there is a conda lock, the installer for conda packages
    is also included.
    """
    targets = [*chain.from_iterable(selection.targets for selection in selections)]
    used = {(t.platform, t.python) for t in targets}
    for platform in {*platforms} - {t.platform for t in targets}:
        used |= {(platform, target.python) for target in targets}
    with progress.task("pack envbuilder itself"):
        itself = self_wheel.wheel(settings)
    store = Store.of(settings)
    parts = [of_bytes(f"wheels/{itself.file}", itself.content, "wheel", "envbuilder itself")]
    dependencies: dict[str, File] = {}
    extra = "conda" if any(selection.conda for selection in selections) else ""
    uv = selections[0].tools[0].version
    for platform, python in sorted(used):
        if not self_wheel.accepts(itself, python):
            continue
        progress.note(f"· resolve envbuilder's dependencies for {platform} with Python {python}")
        resolved = self_wheel.dependencies(itself, platform, python, settings, progress, uv, extra)
        dependencies |= {file.file: file for file in resolved}
    parts += [_stored(f"wheels/{f.file}", f, "wheel", store) for f in dependencies.values()]
    return tuple(parts)


# --- base images


class Needed(Struct, frozen=True, kw_only=True, order=True):
    """A base image that is needed for a platform.

    If there is no digest, any image with this name is accepted.
    """

    ref: str
    platform: types.Platform
    digest: types.Digest | None = None

    @property
    def name(self) -> str:
        """The image's name in a container engine.

        The name contains no digest, because a tag cannot contain one.
        """
        if reference.is_on_disk(self.ref):
            return reference.path_on_disk(self.ref).name
        name = self.ref.partition("@")[0]
        if ":" in name.rpartition("/")[2]:
            return name
        return f"{name}:latest"


def needed_bases(
    selections: Iterable[Selection], override: str | None, settings: Settings
) -> tuple[Needed, ...]:
    """Return the base images that the selected profiles need.

    If `override` is given, this base image is used instead of the base images in the locks.
    """
    from envbuilder.builds.image.base import base_ref
    from envbuilder.builds.request import Request

    request = Request(base_image=override)
    needed = set()
    for target in chain.from_iterable(s.targets for s in selections if s.profile.makes_images):
        base = target.base
        chosen = override or (base and settings.configuration.base_images.get(base.ref))
        # The packages of a base that is made here are among the locked files.
        if base is not None and (chosen or not base.suite):
            ref = base_ref(base, request, settings)
            digest = None if chosen else base.digest
            needed.add(Needed(ref=ref, platform=target.platform, digest=digest))
    return tuple(sorted(needed, key=lambda n: (n.ref, n.platform)))


def bases(
    images: Iterable[Needed], settings: Settings, progress: Progress
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return parts for the base images, and descriptions of the unavailable images.

    Each blob is included only once. The reason why an image is unavailable is printed but not
    stored in the bundle, because the reason may contain folder names of this machine or differ from
    time to time.
    """
    parts: dict[str, Part] = {}
    lacks = []
    for needed in images:
        try:
            layout = _obtain(needed, settings, progress)
            parts |= {part.member.path: part for part in _of_base(needed, layout)}
        except EnvbuilderError as error:
            lack = f"the base image {needed.name} for {needed.platform}"
            progress.note(f"note: {lack} is unavailable: {error.message}")
            lacks.append(lack)
    return tuple(parts.values()), tuple(lacks)


def _obtain(needed: Needed, settings: Settings, progress: Progress) -> Layout:
    """Obtain an image from disk, the engine or the registry, and return its layout.

    Raise `BuildError` if the image would have to be fetched from the registry but `needed` has no
    digest.
    """
    folder = require_writable(settings.bases_dir)
    if reference.is_on_disk(needed.ref):
        return archive.opened(reference.path_on_disk(needed.ref), folder)
    cached = needed.digest and transfer.has_base(needed.digest, needed.platform, settings)
    layout = None if cached else _of_engine(needed, folder, progress)
    if layout is not None:
        return layout
    if needed.digest is None:
        raise BuildError("no container engine has it")
    progress.note(f"· fetch the base image {needed.name}")
    return transfer.obtain_base(needed.name, needed.digest, needed.platform, settings, progress)


def _of_engine(needed: Needed, folder: Path, progress: Progress) -> Layout | None:
    try:
        connected = connection.connect()
    except ToolError:
        return None
    with connected as engine:
        image = engine.image(needed.ref)
        if image is None:
            return None
        with progress.task(f"export the base image {needed.name} from the engine"):
            return engine_images.export(engine, image, folder)


def _of_base(needed: Needed, layout: Layout) -> Iterator[Part]:
    """Yield parts for the blobs of a base image, and for an index that lists only this image.

    The index is named after the digest by which the image is requested, which is the digest of the
    image's manifest or of an index that lists the manifest.
    """
    image = layout.find(needed.platform)
    is_manifest = needed.digest is not None and layout.blob(needed.digest).is_file()
    digest = needed.digest if is_manifest and needed.digest else image.digest
    for blob in blobs(layout, image, digest):
        sha256 = blob.removeprefix("sha256:")
        yield _of_path(
            f"bases/blobs/sha256/{sha256}",
            layout.blob(blob),
            sha256,
            "base",
            "part of a base image",
        )
    if not reference.is_on_disk(needed.ref):
        image = replace(image, annotations=archive.named(needed.name))
    index = Index(schema_version=2, media_type=INDEX, manifests=(image,))
    name = f"{digest.removeprefix('sha256:')}-{needed.platform.replace('/', '-')}.json"
    yield of_bytes(f"bases/{name}", encode(index), "base", "a base image")


def blobs(layout: Layout, image: Descriptor, digest: types.Digest) -> tuple[types.Digest, ...]:
    """Return the digests of all blobs of an image, including `digest`.

    `digest` is the digest of the image's manifest, or of an index that lists the manifest.
    """
    below = [blob.digest for blob in layout.read_manifest(image).blobs]
    return tuple(dict.fromkeys([digest, image.digest, *below]))


# --- the manifest


def manifest(
    selections: Sequence[Selection],
    parts: Iterable[Part],
    lacks: Iterable[str],
    environment: str | None = None,
) -> Manifest:
    """Return the manifest of a bundle that contains `parts`.

    `environment` is the name of the project's environment, or None if the bundle contains only
    profiles. Raise `InvalidError` if the manifest would be invalid.
    """
    targets = [*chain.from_iterable(selection.targets for selection in selections)]
    result = Manifest(
        schema=SCHEMA if environment is None else WITH_PROJECT,
        made_by=f"envbuilder {__version__}",
        profiles=tuple(sorted(selection.profile.name for selection in selections)),
        platforms=tuple(sorted({t.platform for t in targets})),
        pythons=tuple(sorted({t.python for t in targets}, key=lambda p: int(p.partition(".")[2]))),
        lacks=tuple(lacks),
        members=order(p.member for p in parts),
        environment=environment,
    )
    if wrong := problem(result):
        raise InvalidError(f"the bundle would be invalid: {wrong}")
    return result


def of_bytes(path: str, content: bytes, kind: Kind, what: str) -> Part:
    """Return a part for the file `path` in a bundle, with the given content.

    Raise `InvalidError` if `content` is text that contains a credential.
    """
    if kind in TEXTS:
        publishable.require_public(path.removeprefix(f"{PROJECT}/"), content)
    member = Member(
        path=path,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        kind=kind,
        what=what,
    )
    return Part(member=member, content=content)


def _stored(path: str, file: File, kind: Kind, store: Store) -> Part:
    return _of_path(
        path, store.path(file.sha256), file.sha256, kind, f"{file.kind} {file.name} {file.version}"
    )


def _of_path(path: str, source: Path, sha256: str, kind: Kind, description: str) -> Part:
    return Part(
        member=Member(
            path=path, size=source.stat().st_size, sha256=sha256, kind=kind, what=description
        ),
        content=source,
    )


_UNTRUSTED = "Another program made it, or it was changed. Nothing was unpacked."


class Draft(Struct, frozen=True, kw_only=True):
    """A profile or lock file that is to be written."""

    path: Path
    content: bytes
    why: str = ""
    """A remark to show next to the path when it is printed."""


class Image(Struct, frozen=True, kw_only=True):
    """A base image for this machine that was unpacked from a bundle."""

    name: str
    folder: str
    """The folder on disk that contains an OCI layout of only this image."""
    loaded: bool
    """Whether the container engine has the image under its name."""


class Unpacked(Struct, frozen=True, kw_only=True):
    """The result of unpacking a bundle."""

    manifest: Manifest
    digest: str
    """The sha256 of the bundle's manifest."""
    new: int
    """The number of files that were stored because they were missing on this machine."""
    present: int
    """The number of files that this machine already had with the correct hash."""
    written: tuple[Draft, ...]
    """The profiles and locks that were written."""
    bases: tuple[Image, ...]
    """The base images for this machine."""
    signed: signatures.Signed | None
    """The accepted signature, or None if no signature is required."""
    differences: tuple[str, ...]
    """The paths of the locks in the bundle that are missing or different in the project. Builds use
    the project's own locks."""


def unpack(path: Path, settings: Settings, progress: Progress, *, force: bool) -> Unpacked:
    """Check a bundle and unpack it.

    If a previous run was interrupted, unpacking continues where that run stopped. Profiles and
    locks are written last, when everything else is in place.

    Raise `BuildError` if the disk is full, or if a file in the bundle is damaged. In the latter
    case, the error names the file. Raise `InvalidError` if `path` is not an envbuilder bundle, or
    if one of the user's files differs (see `drafts`). Raise `SignatureError` if a required
    signature is missing or not accepted.
    """
    try:
        with opened(path) as reader:
            signed = _require_signed(path, reader.digest, settings)
            texts, indexes = _checked(reader)
            changes = drafts(texts, settings, force=force)
            missing = (m.size for m in reader.manifest.members if not _is_stored(m, settings))
            require_rooms([Room(folder=str(settings.cache_dir), bytes=sum(missing))])
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
) -> signatures.Signed | None:
    """Return the accepted signature of the bundle's manifest, or None if no signature is required.

    A signature of the manifest is enough, because the manifest determines every byte of the bundle.
    Raise `SignatureError` if a required signature is missing or not accepted.
    """
    trusted = settings.configuration.signatures.bundles
    if trusted is None:
        return None
    digests = {"sha256": manifest_digest}
    public_keys = signatures.read_public_keys(trusted)
    beside = [signatures.path_beside(path)]
    return signatures.require_signed(str(path), beside, public_keys, SIGNED_TYPE, digests)[1]


def _checked(reader: Reader) -> tuple[dict[str, bytes], dict[str, Index]]:
    """Check the profiles, locks and base image indexes in a bundle, before anything is stored.

    Return the contents of the text files by path, and the indexes by name.
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
    """Return whether a file with the member's hash is stored on this machine.

    For a member of the data set, the file's name is used instead of the hash. The contents of
    stored files are not checked.
    """
    if member.kind == "dataset":
        return mnist.has(member.name, settings)
    return Store.of(settings).has(member.sha256)


def _store(reader: Reader, settings: Settings, progress: Progress) -> tuple[int, int]:
    """Store the members that are missing or damaged on this machine.

    Return the number of members that were stored, and the number that were already present.
    """
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

    `texts` maps paths in the bundle to contents. The rules are:

    - Every profile must be loadable, and the manifest must list the profile or one that extends it.
    - Every lock must match a listed profile, or a project's variant of a listed profile.
    - Every file of a project must be one from which the environment is read.
    - Every locked file must be named in a lock.
    - For each profile, all files of at least one target must be included.
    """
    with TemporaryDirectory(prefix="envbuilder-bundle-") as scratch:
        folder = Path(scratch)
        for path, content in texts.items():
            files.write(folder / path.removeprefix("profiles/"), content)
        try:
            needed, locked = _needed(manifest, folder)
            for lock in [p for p in needed if p.startswith(("locks/", f"{PROJECT}/{LOCKS}/"))]:
                path = f"{lock}{signatures.SUFFIX}"
                signatures.read_signatures(folder / path)  # raises an error for a malformed one
                needed.add(path)
        except InvalidError as error:  # about a file of the scratch folder
            message = error.message.replace(f"{folder}/locks/", "the bundle's locks/")
            message = message.replace(f"{folder}/{PROJECT}/", "the bundle's project/")
            message = message.replace(f"{folder}/", "the bundle's profiles/")
            raise InvalidError(message, error.hints) from error
    stray = sorted(texts.keys() - needed)
    if stray:
        raise InvalidError(
            f"the bundle contains {stray[0]}, which belongs to none of its profiles"
            f" ({', '.join(manifest.profiles)})",
            _UNTRUSTED,
        )
    for member in manifest.of_kind("file"):
        file = locked.get(member.sha256)
        if file is None or file.size not in {None, member.size}:
            raise InvalidError(f"no lock in the bundle lists {member.path}", _UNTRUSTED)


def _needed(manifest: Manifest, folder: Path) -> tuple[set[str], dict[str, File]]:
    """Return the paths of the files that a manifest's profiles need, and the locked files.

    The paths are those of profiles, locks and project files in the bundle. The locked files are
    returned in a dictionary with their sha256 as keys.
    """
    needed: set[str] = set()
    locked: dict[str, File] = {}
    variants = None
    if manifest.environment is not None:
        # What the project's file configures has no effect.
        path = folder / PROJECT / PROJECT_FILE
        _, definition = decoded(files.read_text(path), path)
        if definition is None:
            raise InvalidError(f"{path}: lists no requirements")
        variants = ProjectProfiles(
            definition, manifest.environment, folder / PROJECT, [folder], has_folders=False
        )
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
        sources = chain.from_iterable(map(bundled_sources, lock.targets))
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
    """Raise `InvalidError` unless the bundle has uv and all files for one target in the lock."""
    brought = {m.sha256 for m in manifest.members}
    for target in lock.targets:
        asked = target.platform in manifest.platforms and target.python in manifest.pythons
        tools = (f for p, f in lock.tools.items() if p == target.platform)
        needed = (*target.fetched(managed=managed), *tools)
        if asked and all(f.sha256 in brought for f in needed):
            return
    raise InvalidError(f"the bundle lacks files that profile '{lock.profile}' needs", _UNTRUSTED)


def drafts(texts: Mapping[str, bytes], settings: Settings, *, force: bool) -> tuple[Draft, ...]:
    """Return the files that must be written so that the bundle's profiles and locks take effect.

    If an existing file differs, raise `InvalidError` before anything is written. `force` allows the
    user's own files to be replaced, but never a project's files.
    """
    folders = profiles.search_path(settings.project, settings.config_dir)
    user = settings.config_dir / "profiles"
    changes = []
    refused = []
    for path, content in texts.items():
        if path.startswith(f"{PROJECT}/"):
            continue
        below = path.removeprefix("profiles/")
        remark = ""
        used = next((f / below for f in folders if (f / below).is_file()), None)
        if used is not None and used.read_bytes() == content:
            continue
        if used is not None and used.is_relative_to(resources.profiles_dir()):
            remark = "overrides the shipped one"
        elif used is not None and (not force or used != user / below):
            refused.append(used)
        changes.append(Draft(path=user / below, content=content, why=remark))
    if refused:
        raise InvalidError(
            f"existing files differ from the bundle's: {', '.join(map(str, refused))}",
            "Use --force to replace them, or move them away."
            if all(path.is_relative_to(user) for path in refused)
            else "A project's own files take precedence: run this outside the project, or move"
            " them.",
        )
    return tuple(changes)


def write(changes: Iterable[Draft]) -> None:
    """Write the drafts, locks first.

    This order is safe because a lock has no effect until its profile is written.
    """
    hint = "Set ENVBUILDER_CONFIG_DIR to a folder you can write to."
    for draft in sorted(changes, key=lambda d: d.path.suffix != ".json"):
        files.save(draft.path, draft.content, BuildError, hint)


def _differences(texts: Mapping[str, bytes], settings: Settings) -> tuple[str, ...]:
    """Return the paths of the locks in the bundle that differ from the current project's locks.

    Locks that are missing in the project are included. Outside a project, return an empty tuple.
    """
    if settings.project is None or settings.definition is None:
        return ()
    result = []
    for path, content in texts.items():
        relative = path.removeprefix(f"{PROJECT}/")
        if path.startswith(f"{PROJECT}/{LOCKS}/") and path.endswith(".json"):
            present = None
            with suppress(InvalidError):
                present = read_bytes(settings.project, relative, LARGEST_TEXT)
            if present != content:
                result.append(relative)
    return tuple(result)


# --- base images


def _is_index(member: Member) -> bool:
    """Return whether a member is the index of a base image."""
    return member.kind == "base" and member.path.endswith(".json")


def _read_index(member: Member, content: Iterator[bytes]) -> Index:
    """Read the index of a base image.

    Raise `InvalidError` unless the index lists exactly one image, and this image is for the
    platform in the member's name.
    """
    if member.size > JSON_LIMIT:
        raise InvalidError(f"{member.path} is too large: {member.size} bytes")
    index = decode(b"".join(content), Index, member.path)
    expected = _platform(member.name)
    image = index.manifests[0] if len(index.manifests) == 1 else None
    if image is None or image.platform is None or not image.platform.is_of(expected):
        raise InvalidError(f"{member.path} must list exactly one image, for {expected}")
    return index


def _platform(name: str) -> types.Platform:
    return next(p for p in types.PLATFORMS if name.endswith(f"{p.replace('/', '-')}.json"))


def _laid_out(
    indexes: Mapping[str, Index], manifest: Manifest, settings: Settings
) -> tuple[tuple[Descriptor, Layout], ...]:
    """Use the blobs in the store to create a layout for each base image.

    Return the images for this machine with their layouts. Raise `EnvbuilderError` if an image is
    incomplete.
    """
    native = types.container_platform(machine.machine()) or "linux/amd64"
    bundled = {member.sha256 for member in manifest.members}
    result = []
    for name, index in sorted(indexes.items()):
        layout = _layout(name, index, bundled, settings)
        image = index.manifests[0]
        if image.platform is not None and image.platform.is_of(native):
            result.append((image, layout))
    return tuple(result)


def _layout(name: str, index: Index, bundled: Collection[str], settings: Settings) -> Layout:
    """Create and return an OCI layout of one image, whose blobs are links to the store."""
    from filelock import FileLock

    digest = f"sha256:{name.partition('-')[0]}"
    image = index.manifests[0]
    store = Store.of(settings)
    require_writable(settings.bases_dir)
    folder = transfer.base_folder(settings.cache_dir, digest, _platform(name))
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
    """Load the unpacked images into the container engine if the engine can be reached.

    If the engine already has a different image with the same name, keep that image unless `force`
    is true. Return a description of each unpacked image.
    """
    loadable = [
        (image, layout, image.annotations.get(archive.NAME, "")) for image, layout in images
    ]
    loaded: set[str] = set()
    if images:
        try:
            with connection.connect() as engine:
                for image, layout, name in loadable:
                    if name and _load(engine, name, image, layout, progress, force=force):
                        loaded.add(name)
        except ToolError as error:
            progress.note(f"note: base images were not loaded into an engine: {error.message}")
    return tuple(
        Image(name=name, folder=str(layout.folder), loaded=name in loaded)
        for _, layout, name in loadable
    )


def _load(
    engine: Engine, name: str, image: Descriptor, layout: Layout, progress: Progress, *, force: bool
) -> bool:
    """Load an image into the engine, unless the engine keeps a different image with this name.

    Return whether the engine has the requested image afterwards.
    """
    existing = engine.image(name)
    if existing is not None:
        if existing.id in {image.digest, layout.read_manifest(image).config.digest}:
            return True
        if not force:
            progress.note(
                f"note: the engine keeps its own, different image {name}, unless you use --force"
            )
            return False
    with (
        progress.task(f"load the base image {name}"),
        TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch,
    ):
        engine_images.load(engine, layout, Layout.create(Path(scratch)))
    return True
