"""Validate names in the configuration: a misspelt one would be ignored silently.

Known indexes and base images are the shipped ones and those that the user's profiles and locks
name. Registries are only checked to be hosts; which ones exist is not known.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.core import decoding, files
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import parse_yaml, place, read_text
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.profiles import backends, lock
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.profile import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from envbuilder.core.settings import File

_PREFIX = "ENVBUILDER_INDEX_"
_PYPI = "For PyPI use pip's index-url or UV_INDEX_URL."
_OWN_INDEX = (
    "An index of your own must be named by a profile (indexes: or conda: channels:), a channel of a"
    " project by its environment.yml."
)
_DOCKER_HUB = frozenset(
    {"hub.docker.com", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}
)
"""Hosts in common use for Docker Hub, which image references call docker.io."""


def require(
    files: Sequence[File],
    environ: Mapping[str, str],
    folders: Sequence[Path],
    channels: Callable[[], set[str]] = set,
) -> None:
    """Raise `InvalidError` for an unknown name in a file or an environment variable.

    `folders` hold all profiles and their locks, `channels` returns the conda channels of a project.
    """

    def of_user() -> set[str]:
        return _of_profiles(folders, _index_names) | channels()

    for file in files:
        _require_indexes(file, of_user)
        _require_base_images(file, folders)
        _require_registries(file)
        _require_profile(file, folders)
        _require_builders(file, folders)
    _require_variables(environ, of_user)


def _require_indexes(file: File, of_user: Callable[[], set[str]]) -> None:
    for name in file.read.indexes:
        names = _unless_known(name.__eq__, of_user)
        if names:
            spot = place(file.where, file.text, ["indexes", name])
            raise InvalidError(
                f"{spot}: indexes: there is no index {_shown(name)}",
                f"{_did_you_mean(name.lower().replace('_', '-'), names)}Known:"
                f" {', '.join(sorted(names))}. {_PYPI}"
                f" {_OWN_INDEX}",
            )


def _require_profile(file: File, folders: Sequence[Path]) -> None:
    """Raise `InvalidError` for the profile of a project if it does not exist.

    One that the user's own file names may be in some of their projects only.
    """
    name = file.read.profile
    if name is None or Path(file.where).name != PROJECT_FILE:
        return
    available = profiles.names(folders)
    if name not in available:
        spot = place(file.where, file.text, ["profile"])
        hint = suggestion(name, available)
        raise InvalidError(f"{spot}: profile: unknown profile {_shown(name)}", hint)


def _require_builders(file: File, folders: Sequence[Path]) -> None:
    """Raise `InvalidError` for a profile or platform that does not exist.

    A profile in the user's own file may be in some of their projects only.
    """
    of_project = Path(file.where).name == PROJECT_FILE
    available = profiles.names(folders) if of_project and file.read.builders else None
    for key in file.read.builders:
        wrong = backends.problem(key, available)
        if wrong is not None:
            name, possible = wrong
            spot = place(file.where, file.text, ["builders", key])
            raise InvalidError(
                f"{spot}: builders: {_shown(key)}: there is no profile or platform {_shown(name)}",
                f"{_did_you_mean(name, possible)}Write PROFILE, OS/ARCH or PROFILE@OS/ARCH;"
                f" platforms of images: {', '.join(backends.PLATFORMS)}.",
            )


def _require_variables(environ: Mapping[str, str], of_user: Callable[[], set[str]]) -> None:
    from envbuilder.packages.python.indexes import variable

    for stated in sorted(v for v in environ if v.startswith(_PREFIX) and environ[v]):
        names = [*map(variable, _unless_known(partial(_sets, stated), of_user))]
        if names:
            name = stated.removeprefix(_PREFIX).lower().replace("_", "-")
            raise InvalidError(
                f"{_shown(stated)} in the environment: there is no index {_shown(name)}",
                f"{_did_you_mean(variable(name), names)}Known: {', '.join(sorted(names))}. {_PYPI}"
                f" {_OWN_INDEX}",
            )


def _sets(stated: str, name: str) -> bool:
    """Return whether a variable sets the URL of an index."""
    from envbuilder.packages.python.indexes import variable

    return variable(name) == stated


def _unless_known(is_meant: Callable[[str], bool], of_user: Callable[[], set[str]]) -> set[str]:
    """Return the names of all indexes; an empty set if `is_meant` matches one of them.

    The user's files are read (by `of_user`) only if no built-in name matches.
    """
    from envbuilder.packages.python import indexes

    names = {*indexes.upstreams(), lock.MAIN, lock.SECURITY}
    if not any(map(is_meant, names)):
        names |= of_user()
    return set() if any(map(is_meant, names)) else names


def _index_names(profile: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the indexes and channels that a profile names."""
    listed, conda = profile.get("indexes"), profile.get("conda")
    if isinstance(listed, dict):
        yield from listed.values()
    channels = conda.get("channels") if isinstance(conda, dict) else None
    if isinstance(channels, list):
        yield from channels


def _require_base_images(file: File, folders: Sequence[Path]) -> None:
    if not file.read.base_images:
        return
    names = _of_profiles(folders, _base_names)
    for name in file.read.base_images:
        if name not in names:
            names |= {ref for folder in folders for ref in _of_locks(folder / "locks")}
        if name not in names:
            spot = place(file.where, file.text, ["base_images", name])
            raise InvalidError(
                f"{spot}: base_images: no profile is built on {_shown(name)}",
                f"{_did_you_mean(_plain(name), names)}Known, without digests:"
                f" {', '.join(sorted(names))}. For an image of your own: --base-image REF.",
            )


def _base_names(profile: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the references of the base images that a profile names."""
    bases = profile.get("base")
    for base in bases.values() if isinstance(bases, dict) else ():
        if isinstance(base, dict):
            yield base.get("ref")


def _plain(ref: str) -> str:
    """Return a reference as profiles write it: without a digest, and without Docker Hub's host."""
    name = ref.partition("@")[0]
    for prefix in ("docker.io/library/", "index.docker.io/library/", "library/", "docker.io/"):
        name = name.removeprefix(prefix)
    return name


def _require_registries(file: File) -> None:
    """Raise `InvalidError` for an invalid registry host or an invalid mirror."""
    stated = {"mirrors": tuple(file.read.mirrors), "plain_http": file.read.plain_http}
    for key, hosts in stated.items():
        for number, host in enumerate(hosts):
            if wrong := _host_problem(host):
                below = host if key == "mirrors" else str(number)
                spot = place(file.where, file.text, [key, below])
                raise InvalidError(f"{spot}: {key}: {_shown(host)} {wrong[0]}", wrong[1])
    if file.read.mirrors:
        from envbuilder.containers.oci import reference

        for host in file.read.mirrors:
            try:
                reference.mirrored(reference.parse(f"{host}/any/image"), file.read.mirrors)
            except InvalidError as error:
                spot = place(file.where, file.text, ["mirrors", host])
                raise InvalidError(
                    f"{spot}: mirrors: {host}: {_shown(file.read.mirrors[host])} begins with no"
                    " registry's host, or its path is too long or none of an image",
                    "For example: mirrors: {docker.io: 'mirror.example:5000/hub'}",
                ) from error


def _host_problem(host: str) -> tuple[str, str] | None:
    """Return what is wrong with a registry's host, and the hint; None if it is valid."""
    from envbuilder.containers.oci import reference

    if host in _DOCKER_HUB:
        return "appears in no image reference", "Docker Hub is called docker.io."
    try:
        right = reference.parse(f"{host}/any/image").host == host
    except InvalidError:
        right = False
    if right:
        return None
    hint = "Write a host, and a port if need be: docker.io, ghcr.io, registry.example:5000."
    return "is not a registry's host", hint


def _of_profiles(
    folders: Sequence[Path], names: Callable[[Mapping[str, Any]], Iterator[Any]]
) -> set[str]:
    """Return what `names` yields for the profiles in some folders; unreadable ones are skipped."""
    collected: set[str] = set()
    for path in (p for folder in folders for p in sorted(folder.glob("*.yaml"))):
        try:
            profile = parse_yaml(read_text(path), str(path))
        except InvalidError:
            continue
        collected |= {name for name in names(profile) if isinstance(name, str)}
    return collected


def _of_locks(folder: Path) -> Iterator[str]:
    """Yield the references of the base images in the locks of a folder."""
    for path in sorted(folder.glob("*.json")):
        try:
            lock = decoding.strict_json(files.read(path, decoding.LARGEST))
        except (OSError, ValueError):
            continue
        targets = lock.get("targets") if isinstance(lock, dict) else None
        for target in targets if isinstance(targets, list) else ():
            base = target.get("base") if isinstance(target, dict) else None
            ref = base.get("ref") if isinstance(base, dict) else None
            if isinstance(ref, str):
                yield ref


def _did_you_mean(name: str, names: Collection[str]) -> str:
    from difflib import get_close_matches

    longer = [candidate for candidate in sorted(names) if candidate.startswith(name)]
    close = longer if len(longer) < len(names) else []
    close = close or get_close_matches(name, sorted(names), n=1)
    return f"Did you mean {' or '.join(map(repr, close))}? " if close else ""


def _shown(name: str) -> str:
    """Return a user-supplied name for a message: quoted, on one line and of limited length."""
    return repr(name if len(name) <= 100 else f"{name[:100]}…")
