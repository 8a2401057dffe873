"""Decide what a bundle for some profiles holds, and collect its parts on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder import __version__
from envbuilder.bundle import self_wheel
from envbuilder.bundle.base_images import Needed, Packed
from envbuilder.bundle.format import SCHEMA, WITH_PROJECT, Kind, Manifest, Member, order, problem
from envbuilder.containers.oci.descriptor import encode
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import read_text
from envbuilder.packages import mnist, space
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.fetch import fetch
from envbuilder.packages.store import Store
from envbuilder.payload.training.dataset import MNIST_SHA256
from envbuilder.profiles import library
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import Library
from envbuilder.profiles.lock import File, Lock, Target
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envbuilder.core import types
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


class Part(Struct, frozen=True, kw_only=True):
    """A member, and its content: bytes, or a file on this machine."""

    member: Member
    content: bytes | Path


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
        targets = tuple(
            profile_lock.select(lock, platform, python)
            for platform in dict.fromkeys(platforms)
            if platform in profile.platforms
            for python in dict.fromkeys(pythons or usual)
        )
        if not targets:
            raise InvalidError(
                f"profile '{name}' is not for {', '.join(platforms)}",
                f"It is for {', '.join(profile.platforms)}: name them with --platform.",
            )
        conda = _conda(profile, targets, library)
        tools = tuple(lock.tool(platform) for platform in dict.fromkeys(platforms))
        selections.append(
            Selection(profile=profile, lock=lock, targets=targets, tools=tools, conda=conda)
        )
    return tuple(selections)


def _conda(
    profile: Profile, targets: Iterable[Target], library: Library
) -> tuple[conda_lock.Target, ...]:
    """Return a conda lock's targets matching these.

    Raise `InvalidError` if the lock is stale, `SignatureError` if a required signature is missing
    or not accepted.
    """
    stored, _ = conda_lock.find_signed(profile.name, library)
    if stored is None:
        return ()
    lock = conda_lock.require_usable(profile, stored)
    pairs = {(t.platform, t.python) for t in targets}
    return tuple(t for t in lock.targets if (t.platform, t.python) in pairs)


def texts(selections: Iterable[Selection], folders: Sequence[Path]) -> tuple[Part, ...]:
    """Return parts for the profiles, those they extend, and their locks, as in their files."""
    parts: dict[str, Part] = {}
    for selection in selections:
        name = selection.profile.name
        locks = [profile_lock.path_for(name, folders)]
        locks += [conda_lock.path_for(name, Library(folders))] if selection.conda else []
        for part in (*of_profile(name, folders), *of_locks(filter(None, locks), folders)):
            parts[part.member.path] = part
    return tuple(parts.values())


def of_profile(name: str, folders: Sequence[Path]) -> Iterator[Part]:
    """Yield parts for a profile and those it extends, as in their files."""
    for path in profiles.chain(name, folders):
        yield of_bytes(f"profiles/{path.name}", read_text(path).encode(), "profile", "profile")


def of_locks(
    locks: Iterable[Path], folders: Sequence[Path], below: str = "locks", kind: Kind = "lock"
) -> Iterator[Part]:
    """Yield parts for locks and their signatures, as in their files."""
    for lock in locks:
        for path in filter(None, (lock, library.signature_of(lock, folders))):
            yield of_bytes(f"{below}/{path.name}", read_text(path).encode(), kind, "lock")


def files(
    selections: Sequence[Selection], settings: Settings, progress: Progress
) -> tuple[File, ...]:
    """Return the locked files of all targets and tools, each once, after fetching missing ones."""
    targets = [t for selection in selections for t in selection.targets]
    conda = tuple(
        p.as_file for selection in selections for t in selection.conda for p in t.packages
    )
    tools = {f.sha256: f for selection in selections for f in selection.tools}
    locked = tools | {f.sha256: f for f in (*(f for t in targets for f in t.files), *conda)}
    space.require_rooms([space.downloads(locked.values(), settings)])
    for target in targets:
        fetch(target.files, target, settings, progress)
    fetch(tuple(tools.values()), targets[0], settings, progress)
    if conda:
        fetch(conda, targets[0], settings, progress)
    return tuple(locked.values())


def of_files(locked: Iterable[File], settings: Settings, apart: Iterable[str]) -> tuple[Part, ...]:
    """Return parts for locked files, except those whose sha256 is in `apart`."""
    excluded, store = set(apart), Store.of(settings)
    return tuple(
        _of_path(f"files/{f.sha256}", store.path(f.sha256), f.sha256, "file", describe(f))
        for f in locked
        if f.sha256 not in excluded
    )


def describe(file: File) -> str:
    """Describe a locked file in a few words."""
    return f"{file.kind} {file.name} {file.version}"


def dataset(settings: Settings, progress: Progress) -> tuple[Part, ...]:
    """Return parts for MNIST's four files; empty if they are unavailable."""
    samples = mnist.obtain(settings, progress)
    if samples.subset:
        return ()
    return tuple(
        _of_path(f"datasets/mnist/{name}", samples.folder / name, sha256, "dataset", "MNIST")
        for name, sha256 in sorted(MNIST_SHA256.items())
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
    targets = [t for selection in selections for t in selection.targets]
    used = {(t.platform, t.python) for t in targets}
    without = {*platforms} - {t.platform for t in targets}
    used |= {(platform, t.python) for platform in without for t in targets}
    with progress.task("pack envbuilder itself"):
        itself = self_wheel.wheel(settings)
    store = Store.of(settings)
    parts = [of_bytes(f"wheels/{itself.file}", itself.content, "wheel", "envbuilder itself")]
    needed: dict[str, File] = {}
    extra = "conda" if any(selection.conda for selection in selections) else ""
    uv = selections[0].tools[0].version
    for platform, python in sorted(used):
        if self_wheel.accepted(itself, [python]):
            progress.note(
                f"· resolve envbuilder's dependencies for {platform} with Python {python}"
            )
            for file in self_wheel.dependencies(
                itself, platform, python, settings, progress, uv, extra
            ):
                needed[file.file] = file
    parts += [
        _of_path(f"wheels/{f.file}", store.path(f.sha256), f.sha256, "wheel", describe(f))
        for f in needed.values()
    ]
    return tuple(parts)


def base_images(
    selections: Iterable[Selection], override: str | None, settings: Settings
) -> tuple[Needed, ...]:
    """Return the base images that these targets' images need; `override` overrides locked ones."""
    from envbuilder.build.image.base import base_ref
    from envbuilder.build.request import Request

    request = Request(base_image=override)
    needed = set()
    for selection in selections:
        for target in selection.targets if selection.profile.makes_images else ():
            base = target.base
            named = override or (base and settings.configuration.base_images.get(base.ref))
            # The packages of a base that is made here are among the locked files.
            if base is not None and (named or not base.suite):
                needed.add(
                    Needed(
                        ref=base_ref(base, request, settings),
                        platform=target.platform,
                        digest=None if named else base.digest,
                    )
                )
    return tuple(needed)


def of_bases(packed: Iterable[Packed]) -> tuple[Part, ...]:
    """Return parts for base images: each blob once, and each image's index."""
    parts: dict[str, Part] = {}
    for image in packed:
        for digest in image.blobs:
            sha256 = digest.removeprefix("sha256:")
            path = f"bases/blobs/sha256/{sha256}"
            source = image.layout.blob(digest)
            parts[path] = _of_path(path, source, sha256, "base", "part of a base image")
        path = f"bases/{image.file}"
        parts[path] = of_bytes(path, encode(image.index), "base", "a base image")
    return tuple(parts.values())


def manifest(
    selections: Sequence[Selection],
    parts: Iterable[Part],
    lacks: Iterable[str],
    environment: str | None = None,
) -> Manifest:
    """Return the manifest of a bundle of these parts; `environment`: that of a project.

    Raises `InvalidError` if it could not be read again.
    """
    targets = [t for selection in selections for t in selection.targets]
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
    """Return a part for some bytes."""
    sha256 = hashlib.sha256(content).hexdigest()
    member = Member(path=path, size=len(content), sha256=sha256, kind=kind, what=what)
    return Part(member=member, content=content)


def _of_path(path: str, source: Path, sha256: str, kind: Kind, description: str) -> Part:
    size = source.stat().st_size
    return Part(
        member=Member(path=path, size=size, sha256=sha256, kind=kind, what=description),
        content=source,
    )
