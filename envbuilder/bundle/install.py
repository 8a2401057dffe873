"""Install the profiles and locks of a bundle, and compare them with existing ones."""

from __future__ import annotations

import contextlib
import difflib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.bundle.collect import PROJECT
from envbuilder.bundle.format import LARGEST_TEXT
from envbuilder.core import files, resources
from envbuilder.core import settings as core_settings
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.files import read_text
from envbuilder.core.settings import LOCKS, PROJECT_FILE
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import Library
from envbuilder.project.catalog import ProjectProfiles
from envbuilder.project.lines import read_bytes
from envbuilder.signatures import statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from envbuilder.bundle.format import Manifest
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File

_LINES = 40
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


def check(manifest: Manifest, texts: Mapping[str, bytes]) -> None:
    """Raise `InvalidError` if a bundle's profiles, locks and files are inconsistent.

    Every profile must be loadable, and be listed in the manifest or extended by one that is. Every
    lock must belong to such a profile, or to a project's variant of it, and match it. Every file of
    a project must be one that its environment is read from. Every locked file must be named by a
    lock, and each profile must have all files of a target. `texts`: path in the bundle → content.
    """
    with TemporaryDirectory(prefix="envbuilder-bundle-") as scratch:
        folder = Path(scratch)
        for path, content in texts.items():
            files.write(folder / _below(path), content)
        with _naming_the_bundle(folder):
            needed, locked = _needed(manifest, folder)
            needed |= _signatures(needed, folder)
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


@contextlib.contextmanager
def _naming_the_bundle(folder: Path) -> Iterator[None]:
    """Raise errors about files of the scratch folder as errors about the bundle's."""
    try:
        yield
    except InvalidError as error:
        message = error.message.replace(f"{folder}/locks/", "the bundle's locks/")
        message = message.replace(f"{folder}/{PROJECT}/", "the bundle's project/")
        message = message.replace(f"{folder}/", "the bundle's profiles/")
        raise InvalidError(message, error.hint) from error


def _needed(manifest: Manifest, folder: Path) -> tuple[set[str], dict[str, File]]:
    """Return the paths that a manifest's profiles need, and their locked files by sha256."""
    needed: set[str] = set()
    locked: dict[str, File] = {}
    variants = None
    if manifest.environment is not None:
        variants = _variants(folder / PROJECT, manifest.environment)
        read_from = (PROJECT_FILE, *variants.contents.read_from)
        needed |= {f"{PROJECT}/{file}" for file in read_from}
        needed |= _locks_of_profiles(manifest, folder)
    library = Library([folder], variants=variants)
    for name in manifest.profiles:
        profile = library.profile(name)
        lock = library.usable_lock(profile)
        (path,) = library.lock_places(name)
        needed |= {f"profiles/{p.name}" for p in profiles.chain(name, [folder])}
        needed.add(str(path.relative_to(folder)))
        locked |= {f.sha256: f for f in lock.files}
        _require_target(manifest, lock)
        conda = conda_lock.find(name, library)
        if conda is not None:
            conda_lock.require_usable(profile, conda)
            needed.add(str(conda_lock.beside(path).relative_to(folder)))
            packages = (p for t in conda.targets for p in t.packages)
            locked |= {p.sha256: p.as_file for p in packages}
    return needed, locked


def _variants(folder: Path, environment: str) -> ProjectProfiles:
    """Return the profiles of a bundled project whose files are in a folder. Raises `InvalidError`.

    What its file configures has no effect.
    """
    path = folder / PROJECT_FILE
    _, definition = core_settings.decoded(read_text(path), path)
    if definition is None:
        raise InvalidError(f"{path}: lists no requirements")
    return ProjectProfiles(definition, environment, folder)


def _locks_of_profiles(manifest: Manifest, folder: Path) -> set[str]:
    """Return the paths of the locks of profiles themselves, of which a project has variants."""
    library = Library([folder])
    paths = {name: f"locks/{name}.json" for name in manifest.profiles}
    present = {name: path for name, path in paths.items() if (folder / path).is_file()}
    for name in present:
        library.usable_lock(library.profile(name))
    return set(present.values())


def _signatures(needed: Iterable[str], folder: Path) -> set[str]:
    """Return the paths that signatures of needed locks have; `InvalidError` if one is malformed."""
    locks = (path for path in needed if path.startswith(("locks/", f"{PROJECT}/{LOCKS}/")))
    paths = {f"{path}{statement.SUFFIX}" for path in locks}
    for path in paths:
        statement.read_file(folder / path)
    return paths


def _require_target(manifest: Manifest, lock: profile_lock.Lock) -> None:
    """Raise `InvalidError` if a bundle has no complete target of a lock, with the tool for it."""
    brought = {m.sha256 for m in manifest.members}
    for target in lock.targets:
        asked = target.platform in manifest.platforms and target.python in manifest.pythons
        needed = (*target.files, *(f for p, f in lock.tools.items() if p == target.platform))
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
    changes, refused = [], []
    for path, content in texts.items():
        if path.startswith(f"{PROJECT}/"):
            continue
        below = _below(path)
        used = next((f / below for f in folders if (f / below).is_file()), None)
        old = used.read_bytes() if used else None
        if old == content:
            continue
        draft = Draft(path=user / below, content=content)
        if used is not None and used.is_relative_to(resources.profiles_dir()):
            draft = Draft(path=user / below, content=content, why="overrides the shipped one")
        elif used is not None and old is not None:
            show(_difference(old, content, used))
            if not force or used != user / below:
                refused.append(used)
        changes.append(draft)
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


def _below(path: str) -> Path:
    """Map a bundle path to one below a profile folder: `profiles/x.yaml` → `x.yaml`."""
    return Path(path.removeprefix("profiles/"))


def _difference(old: bytes, new: bytes, path: Path) -> str:
    lines: Sequence[str] = list(
        difflib.unified_diff(
            old.decode("utf-8", "replace").splitlines(),
            new.decode("utf-8", "replace").splitlines(),
            str(path),
            "the bundle's",
            lineterm="",
        )
    )
    more = len(lines) - _LINES
    return "\n".join([*lines[:_LINES], *([f"… and {more} more lines"] if more > 0 else [])])


def differences(texts: Mapping[str, bytes], settings: Settings) -> tuple[LockDifference, ...]:
    """Return the bundle's locks that the project of the working folder lacks, or has otherwise.

    Builds use the project's. Empty outside of a project.
    """
    if settings.project is None or settings.definition is None:
        return ()
    result = []
    for path, content in texts.items():
        relative = path.removeprefix(f"{PROJECT}/")
        if path.startswith(f"{PROJECT}/{LOCKS}/") and path.endswith(".json"):
            try:
                present = read_bytes(settings.project, relative, LARGEST_TEXT)
            except InvalidError:
                result.append(LockDifference(path=relative, state="missing"))
                continue
            if present != content:
                result.append(LockDifference(path=relative, state="different"))
    return tuple(result)
