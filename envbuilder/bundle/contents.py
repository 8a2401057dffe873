"""Decide what a bundle for some profiles holds, and collect its parts on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder import __version__
from envbuilder.bundle import base_images as images
from envbuilder.bundle import format as form
from envbuilder.bundle import self_wheel as own
from envbuilder.bundle.format import Manifest, Member
from envbuilder.containers.oci.descriptor import encode
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import read_text
from envbuilder.packages import mnist, space
from envbuilder.packages.conda import lock as conda_lockfile
from envbuilder.packages.fetch import fetch
from envbuilder.packages.store import Store
from envbuilder.payload.training.dataset import MNIST_SHA256
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import Lock, Target
from envbuilder.profiles.locked_file import File
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envbuilder.core import types as words
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.library import Library


class Part(Struct, frozen=True, kw_only=True):
    """A member, and its content: bytes, or a file on this machine."""

    member: Member
    content: bytes | Path


class Wanted(Struct, frozen=True, kw_only=True):
    """One profile, its locks, and their requested targets."""

    profile: Profile
    lock: Lock
    targets: tuple[Target, ...]
    tools: tuple[File, ...]
    """The lock's uv for each requested platform."""
    conda: tuple[conda_lockfile.Target, ...] = ()
    """Empty if the profile has no conda lock."""


def select(
    names: Sequence[str],
    platforms: Sequence[words.Platform],
    pythons: Sequence[str],
    library: Library,
) -> tuple[Wanted, ...]:
    """Return the requested profiles with their targets; `InvalidError` for what does not exist.

    Without `pythons`: each profile's default Python, and its image's. A platform that a profile
    has no target for belongs to a machine that builds images for other platforms: the bundle gets
    the tools for it.
    """
    found = []
    for name in dict.fromkeys(names):
        profile = library.profile(name)
        lock = library.usable_lock(profile)
        usual = (profile.python.default, profile.image_python)
        targets = tuple(
            lockfile.select(lock, platform, python)
            for platform in dict.fromkeys(platforms)
            if platform in profile.platforms
            for python in dict.fromkeys(pythons or usual)
        )
        if not targets:
            raise InvalidError(
                f"profile '{name}' is not for {', '.join(platforms)}",
                f"It is for {', '.join(profile.platforms)}: name them with --platform.",
            )
        conda = _conda(profile, targets, library.folders)
        tools = tuple(lock.tool(platform) for platform in dict.fromkeys(platforms))
        found.append(Wanted(profile=profile, lock=lock, targets=targets, tools=tools, conda=conda))
    return tuple(found)


def _conda(
    profile: Profile, targets: Iterable[Target], folders: Sequence[Path]
) -> tuple[conda_lockfile.Target, ...]:
    """Return a conda lock's targets matching these; `InvalidError` if the lock is stale."""
    found = conda_lockfile.find(profile.name, folders)
    if found is None:
        return ()
    lock = conda_lockfile.require_usable(profile, found)
    pairs = {(t.platform, t.python) for t in targets}
    return tuple(t for t in lock.targets if (t.platform, t.python) in pairs)


def texts(wanted: Iterable[Wanted], folders: Sequence[Path]) -> tuple[Part, ...]:
    """Return parts for the profiles, those they extend, and their locks, as in their files."""
    parts: dict[str, Part] = {}
    for one in wanted:
        for path in profiles.chain(one.profile.name, folders):
            part = _of_bytes(
                f"profiles/{path.name}", read_text(path).encode(), "profile", "profile"
            )
            parts[part.member.path] = part
        locks = [lockfile.path_for(one.profile.name, folders)]
        locks += [conda_lockfile.path_for(one.profile.name, folders)] if one.conda else []
        for lock in locks:
            assert lock is not None, "select read it"
            part = _of_bytes(f"locks/{lock.name}", read_text(lock).encode(), "lock", "lock")
            parts[part.member.path] = part
    return tuple(parts.values())


def files(wanted: Sequence[Wanted], settings: Settings, progress: Progress) -> tuple[File, ...]:
    """Return the locked files of all targets and tools, each once, after fetching missing ones."""
    targets = [t for one in wanted for t in one.targets]
    conda = tuple(p.as_file for one in wanted for t in one.conda for p in t.packages)
    tools = {f.sha256: f for one in wanted for f in one.tools}
    locked = tools | {f.sha256: f for f in (*(f for t in targets for f in t.files), *conda)}
    space.require_rooms([space.downloads(locked.values(), settings)])
    for target in targets:
        fetch(target.files, target, settings, progress)
    fetch(tuple(tools.values()), targets[0], settings, progress)
    if conda:
        fetch(conda, targets[0], settings, progress)
    return tuple(locked.values())


def of_files(found: Iterable[File], settings: Settings, apart: Iterable[str]) -> tuple[Part, ...]:
    """Return parts for locked files, except those whose sha256 is in `apart`."""
    known, store = set(apart), Store(settings.store_dir)
    return tuple(
        _of_path(f"files/{f.sha256}", store.path(f.sha256), f.sha256, "file", describe(f))
        for f in found
        if f.sha256 not in known
    )


def describe(file: File) -> str:
    """Describe a locked file in a few words."""
    return f"{file.kind} {file.name} {file.version}"


def dataset(settings: Settings, progress: Progress) -> tuple[Part, ...]:
    """Return parts for MNIST's four files; empty if they are unavailable."""
    found = mnist.obtain(settings, progress)
    if found.subset:
        return ()
    return tuple(
        _of_path(f"datasets/mnist/{name}", found.folder / name, sha256, "dataset", "MNIST")
        for name, sha256 in sorted(MNIST_SHA256.items())
    )


def of_envbuilder(
    wanted: Sequence[Wanted],
    platforms: Iterable[words.Platform],
    settings: Settings,
    progress: Progress,
) -> tuple[Part, ...]:
    """Return parts for envbuilder's wheel and its dependencies on these platforms and Pythons.

    The dependencies include the locked uv and, if there is a conda lock, the installer for conda
    packages.
    """
    targets = [t for one in wanted for t in one.targets]
    used = {(t.platform, t.python) for t in targets}
    without = {*platforms} - {t.platform for t in targets}
    used |= {(platform, t.python) for platform in without for t in targets}
    with progress.task("pack envbuilder itself"):
        itself = own.wheel(settings)
    store = Store(settings.store_dir)
    parts = [_of_bytes(f"wheels/{itself.file}", itself.content, "wheel", "envbuilder itself")]
    needed: dict[str, File] = {}
    extra = "conda" if any(one.conda for one in wanted) else ""
    uv = wanted[0].tools[0].version
    for platform, python in sorted(used):
        if own.accepted(itself, [python]):
            progress.note(f"· find what envbuilder needs on {platform} with Python {python}")
            for file in own.dependencies(itself, platform, python, settings, progress, uv, extra):
                needed[file.file] = file
    parts += [
        _of_path(f"wheels/{f.file}", store.path(f.sha256), f.sha256, "wheel", describe(f))
        for f in needed.values()
    ]
    return tuple(parts)


def base_images(
    wanted: Iterable[Wanted], asked: str | None, settings: Settings
) -> tuple[images.Wanted, ...]:
    """Return the base images that these targets' images need; `asked` overrides locked ones."""
    from envbuilder.build.image.base import base_ref
    from envbuilder.build.request import Request

    request = Request(base_image=asked)
    found = set()
    for one in wanted:
        for target in one.targets if one.profile.makes_images else ():
            base = target.base
            named = asked or (base and settings.configuration.base_images.get(base.ref))
            # The packages of a base that is made here are among the locked files.
            if base is not None and (named or not base.suite):
                found.add(
                    images.Wanted(
                        ref=base_ref(base, request, settings),
                        platform=target.platform,
                        digest=None if named else base.digest,
                    )
                )
    return tuple(found)


def of_bases(packed: Iterable[images.Packed]) -> tuple[Part, ...]:
    """Return parts for base images: each blob once, and each image's index."""
    parts: dict[str, Part] = {}
    for one in packed:
        for digest in one.blobs:
            sha256 = digest.removeprefix("sha256:")
            path = f"bases/blobs/sha256/{sha256}"
            source = one.layout.blob(digest)
            parts[path] = _of_path(path, source, sha256, "base", "part of a base image")
        path = f"bases/{one.file}"
        parts[path] = _of_bytes(path, encode(one.index), "base", "a base image")
    return tuple(parts.values())


def manifest(wanted: Sequence[Wanted], parts: Iterable[Part], lacks: Iterable[str]) -> Manifest:
    """Return the manifest of a bundle of these parts."""
    targets = [t for one in wanted for t in one.targets]
    return Manifest(
        schema=form.SCHEMA,
        made_by=f"envbuilder {__version__}",
        profiles=tuple(sorted(one.profile.name for one in wanted)),
        platforms=tuple(sorted({t.platform for t in targets})),
        pythons=tuple(sorted({t.python for t in targets}, key=lambda p: int(p.partition(".")[2]))),
        lacks=tuple(lacks),
        members=form.order(p.member for p in parts),
    )


def _of_bytes(path: str, content: bytes, kind: form.Kind, what: str) -> Part:
    sha256 = hashlib.sha256(content).hexdigest()
    member = Member(path=path, size=len(content), sha256=sha256, kind=kind, what=what)
    return Part(member=member, content=content)


def _of_path(path: str, source: Path, sha256: str, kind: form.Kind, what: str) -> Part:
    size = source.stat().st_size
    return Part(
        member=Member(path=path, size=size, sha256=sha256, kind=kind, what=what), content=source
    )
