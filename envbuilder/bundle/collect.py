"""Decide what a bundle for some profiles holds, and collect its parts on this machine."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder import __version__
from envbuilder.builds import mnist
from envbuilder.bundle import self_wheel
from envbuilder.bundle.format import (
    LARGEST_TEXT,
    SCHEMA,
    TEXTS,
    WITH_PROJECT,
    Kind,
    Manifest,
    Member,
    Part,
    order,
    problem,
)
from envbuilder.containers.engine import connection, images as engine_images
from envbuilder.containers.oci import archive, reference
from envbuilder.containers.oci.layout import INDEX, Descriptor, Index, Layout, encode
from envbuilder.containers.registry import base_images
from envbuilder.core import types
from envbuilder.core.decoding import error_at
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError, is_public
from envbuilder.core.files import read_text
from envbuilder.core.settings import LOCKS, PROJECT_FILE, Settings, decoded, require_writable
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.sources.source import require_public
from envbuilder.packages.sources.source_locker import bundled_sources, fetch
from envbuilder.packages.store import Store, download_room, require_rooms
from envbuilder.profiles import (
    lock as profile_lock,
    profile as profiles,
)
from envbuilder.profiles.library import Library, signature_of
from envbuilder.profiles.lock import File, Lock, Target
from envbuilder.profiles.profile import Profile
from envbuilder.project import image_files
from envbuilder.project.lines import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.project.variants import ProjectProfiles

PROJECT = "project"
"""Folder of a bundle that holds a project's files and locks, under their paths in the project."""


class Selection(Struct, frozen=True, kw_only=True):
    """One profile, its locks, and their requested targets."""

    profile: Profile
    lock: Lock
    targets: tuple[Target, ...]
    tools: tuple[File, ...]
    """The lock's uv for each requested platform."""
    conda: tuple[conda_lock.Target, ...] = ()
    """Empty if the profile has no conda lock."""


def select(
    names: Sequence[str],
    platforms: Sequence[types.Platform],
    pythons: Sequence[str],
    library: Library,
) -> tuple[Selection, ...]:
    """Return the requested profiles with their targets; `InvalidError` for what does not exist.

    Without `pythons`: each profile's default Python, and its image's. A platform that a profile
    has no target for belongs to a machine that builds images for other platforms: the bundle gets
    the tools for it.
    """
    selections = []
    for name in dict.fromkeys(names):
        profile = library.profile(name)
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
                f"profile '{name}' is not for {', '.join(platforms)}",
                f"It is for {', '.join(profile.platforms)}: name them with --platform.",
            )
        selections.append(
            Selection(
                profile=profile,
                lock=lock,
                targets=tuple(targets),
                tools=tuple(tools),
                conda=_conda(profile, targets, library),
            )
        )
    return tuple(selections)


def _conda(
    profile: Profile, targets: Iterable[Target], library: Library
) -> tuple[conda_lock.Target, ...]:
    """Return a conda lock's targets matching these.

    Raise `InvalidError` if the lock is stale, `SignatureError` if a required signature is missing
    or not accepted.
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
    """Return parts for the profiles, those they extend, and their locks, as in their files.

    In a project, also for its files that are read, and its own locks. Raise `InvalidError` if the
    project's file holds credentials.
    """
    folders = library.folders
    parts = list[Part]()
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
    """Return the path of a profile's own lock; with `fresh`, only if it can be used.

    `check` compares the locks of a project with it.
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
    """Yield parts for locks and their signatures, as in their files."""
    for lock in filter(None, locks):
        for path in filter(None, (lock, signature_of(lock, folders))):
            yield of_bytes(f"{below}/{path.name}", read_text(path).encode(), kind, "lock")


def _require_public(path: Path) -> None:
    """Raise `InvalidError` if a project's file has a URL that should not be passed on."""
    text = read_text(path)
    configuration, _ = decoded(text, path)
    for name, url in configuration.indexes.items():
        if not is_public(url):
            raise error_at(
                PROJECT_FILE,
                text,
                ["indexes", name],
                "the URL holds credentials, and a bundle would pass them on",
                "Move it to config.yaml in your configuration folder, or to your ~/.netrc.",
            )


# --- files


def files(
    selections: Sequence[Selection], settings: Settings, progress: Progress
) -> tuple[File, ...]:
    """Return the locked files of all targets and tools, each once, after fetching missing ones."""
    groups: list[tuple[Target, list[File]]] = []
    for selection in selections:
        managed = selection.profile.python.managed
        for target in selection.targets:
            locked_files = [*target.fetched(managed=managed), *bundled_sources(target)]
            groups += [(target, locked_files)]
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
    """Return parts for locked files, except those whose sha256 is in `apart`.

    Raise `InvalidError` if one is of a folder of the project with a credential.
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
    """Return parts for MNIST's four files; empty if they are unavailable."""
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
    """Return parts for envbuilder's wheel and its dependencies on these platforms and Pythons.

    The dependencies include the locked uv and, if there is a conda lock, the installer for conda
    packages.
    """
    targets = [*chain.from_iterable(selection.targets for selection in selections)]
    used = {(t.platform, t.python) for t in targets}
    without_targets = {*platforms} - {t.platform for t in targets}
    for platform in without_targets:
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
    """A base image for one platform: locked by digest, or any image with this name."""

    ref: str
    platform: types.Platform
    digest: types.Digest | None = None

    @property
    def name(self) -> str:
        """Return its name in an engine, without the digest, which cannot be part of a tag."""
        if reference.is_on_disk(self.ref):
            return reference.path_on_disk(self.ref).name
        name = self.ref.partition("@")[0]
        return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def needed_bases(
    selections: Iterable[Selection], override: str | None, settings: Settings
) -> tuple[Needed, ...]:
    """Return the base images that these targets' images need; `override` overrides locked ones."""
    from envbuilder.builds.image.base import base_ref
    from envbuilder.builds.request import Request

    request = Request(base_image=override)
    needed = set()
    targets = chain.from_iterable(s.targets for s in selections if s.profile.makes_images)
    for target in targets:
        base = target.base
        named = override or (base and settings.configuration.base_images.get(base.ref))
        # The packages of a base that is made here are among the locked files.
        if base is not None and (named or not base.suite):
            ref = base_ref(base, request, settings)
            digest = None if named else base.digest
            needed.add(Needed(ref=ref, platform=target.platform, digest=digest))
    return tuple(sorted(needed, key=lambda n: (n.ref, n.platform)))


def bases(
    images: Iterable[Needed], settings: Settings, progress: Progress
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return parts for base images, each blob once, and the names of unavailable images.

    The reason is only noted, not put into the bundle: it may name folders of this machine or
    depend on the time.
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
    """Return a layout with the image: from this disk, the engine, or its registry."""
    folder = require_writable(settings.bases_dir)
    if reference.is_on_disk(needed.ref):
        return archive.opened(reference.path_on_disk(needed.ref), folder)
    cached = needed.digest and base_images.is_present(needed.digest, needed.platform, settings)
    layout = None if cached else _of_engine(needed, folder, progress)
    if layout is not None:
        return layout
    if needed.digest is None:
        raise BuildError("no container engine has it")
    progress.note(f"· fetch the base image {needed.name}")
    return base_images.obtain(needed.name, needed.digest, needed.platform, settings, progress)


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
    """Yield parts for the blobs of a base image, and for an index that lists it alone.

    The index has the name of the digest that the image is requested by: of its manifest, or of an
    index that lists it.
    """
    image = layout.find(needed.platform)
    listed = needed.digest is not None and layout.blob(needed.digest).is_file()
    digest = needed.digest if listed and needed.digest else image.digest
    for blob in blobs(layout, image, digest):
        sha256 = blob.removeprefix("sha256:")
        path = f"bases/blobs/sha256/{sha256}"
        yield _of_path(path, layout.blob(blob), sha256, "base", "part of a base image")
    if not reference.is_on_disk(needed.ref):
        image = replace(image, annotations=archive.named(needed.name))
    index = Index(schema_version=2, media_type=INDEX, manifests=(image,))
    name = f"{digest.removeprefix('sha256:')}-{needed.platform.replace('/', '-')}.json"
    yield of_bytes(f"bases/{name}", encode(index), "base", "a base image")


def blobs(layout: Layout, image: Descriptor, digest: types.Digest) -> tuple[types.Digest, ...]:
    """Return the digests of an image's blobs; `digest`: of its manifest or an index of it."""
    below = [blob.digest for blob in layout.read_manifest(image).blobs]
    return tuple(dict.fromkeys([digest, image.digest, *below]))


# --- the manifest


def manifest(
    selections: Sequence[Selection],
    parts: Iterable[Part],
    lacks: Iterable[str],
    environment: str | None = None,
) -> Manifest:
    """Return the manifest of a bundle of these parts; `environment`: that of a project.

    Raises `InvalidError` if it could not be read again.
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
    """Return a part for some bytes. Raise `InvalidError` if it is a text with a credential."""
    if kind in TEXTS:
        image_files.require_public(path.removeprefix(f"{PROJECT}/"), content)
    sha256 = hashlib.sha256(content).hexdigest()
    member = Member(path=path, size=len(content), sha256=sha256, kind=kind, what=what)
    return Part(member=member, content=content)


def _stored(path: str, file: File, kind: Kind, store: Store) -> Part:
    description = f"{file.kind} {file.name} {file.version}"
    return _of_path(path, store.path(file.sha256), file.sha256, kind, description)


def _of_path(path: str, source: Path, sha256: str, kind: Kind, description: str) -> Part:
    size = source.stat().st_size
    return Part(
        member=Member(path=path, size=size, sha256=sha256, kind=kind, what=description),
        content=source,
    )
