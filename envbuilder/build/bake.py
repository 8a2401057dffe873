"""Render a bake file: one target for each profile and platform, built from rendered Dockerfiles.

Pure, as `render` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.build import render
from envbuilder.build.render import RenderedFile
from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.core.resources import MARK, filled
from envbuilder.profiles import backends
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envbuilder.build.project_layer import ProjectLayer

TARGET: Final = "bake"
FILE = "docker-bake.hcl"


class Source(Struct, frozen=True, kw_only=True):
    """A profile to bake: its lock, its Python, and the URLs of its files."""

    profile: Profile
    lock: Lock
    python: str
    urls: dict[str, str]


class BakeTarget(Struct, frozen=True, kw_only=True):
    """A target of the bake file."""

    name: str
    profile: str
    platform: types.Platform
    tag: str


def files(
    sources: Sequence[Source],
    assignments: Mapping[str, types.Instance],
    project: ProjectLayer | None = None,
) -> Iterator[RenderedFile]:
    """Yield the bake file, then each profile's Dockerfile in a folder named after the profile.

    `assignments`: `builders:` of the configuration. Raises `InvalidError` if a profile has no
    Dockerfile, or two targets or groups would have one name.
    """
    folders = [
        (source, [*render.render(
            *(source.profile, source.lock, "dockerfile", source.python, source.urls),
            project=project,
        )])
        for source in sources
    ]  # fmt: skip
    targets = [target for source in sources for target in _targets(source)]
    groups = _groups(targets)
    context = {
        "mark": MARK,
        "targets": targets,
        "groups": groups,
        "amd": "linux-amd64" in groups,
        "arm": "linux-arm64" in groups,
        "assigned": _assigned(targets, assignments) if assignments else {},
    }
    text = filled("bake/docker-bake.hcl.j2", context)
    yield RenderedFile(name=FILE, content=text.encode())
    for source, rendered in folders:
        for file in rendered:
            yield replace(file, name=f"{source.profile.name}/{file.name}")


def _targets(source: Source) -> Iterator[BakeTarget]:
    for target in render.targets_for(source.lock, source.python):
        if target.platform in backends.PLATFORMS:
            suffix = target.platform.replace("/", "-")
            name = source.profile.name
            yield BakeTarget(
                name=f"{name}-{suffix}",
                profile=name,
                platform=target.platform,
                tag=f"envbuilder/{name}:py{source.python}-{suffix}",
            )


def _groups(targets: Sequence[BakeTarget]) -> dict[str, list[str]]:
    """Return the targets of each profile and each platform, by the group's name."""
    profiles, platforms = dict[str, list[str]](), dict[str, list[str]]()
    for target in targets:
        profiles.setdefault(target.profile, []).append(target.name)
        platforms.setdefault(target.platform.replace("/", "-"), []).append(target.name)
    taken = {"default", *platforms, *(target.name for target in targets)}
    for name in taken.intersection(profiles):
        raise InvalidError(
            f"'{name}' would name a group and something else in the bake file",
            "Leave this profile out, or rename it.",
        )
    return profiles | platforms


def _assigned(
    targets: Iterable[BakeTarget], assignments: Mapping[str, types.Instance]
) -> dict[str, list[str]]:
    """Return the names of targets by their instance; that of those without one is empty."""
    names: dict[str, list[str]] = {}
    for target in targets:
        instance = backends.assigned(assignments, target.profile, target.platform)
        names.setdefault(instance, []).append(target.name)
    return names
