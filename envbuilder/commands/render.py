"""`envbuilder render`: write a Dockerfile or other files that can be used without envbuilder."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from msgspec.structs import replace

from envbuilder.builds import project_layer, render
from envbuilder.commands.options import (
    FOLDER,
    environment_option,
    load_settings,
    locked_profile,
    profiles_option,
    python_option,
    target_host_option,
)
from envbuilder.core import console, files, resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import DEFAULT
from envbuilder.project import environments, variants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.lock import Lock


_TARGETS = (*render.TARGETS, render.BAKE)


@click.command("render")
@profiles_option
@environment_option
@click.option(
    "--target",
    type=click.Choice(_TARGETS),
    metavar="TARGET",
    help=(
        f"What to write: {', '.join(_TARGETS)}. Without it, a Dockerfile, or a script for"
        " profiles without one."
    ),
)
@python_option
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    help="Folder to write to. Without it, the main file is printed.",
)
@target_host_option
def command(
    profile: tuple[str, ...],
    target: render.RenderTarget | Literal["bake"] | None,
    python: str | None,
    output: Path | None,
    target_host: Path | None,
) -> None:
    """Write files that build the environment without envbuilder.

    Only generated files, recognized by a mark, are overwritten. Several profiles work only with
    `bake`: a file for `docker buildx bake` with a target for each profile and platform.

    \b
    Examples:
      envbuilder render --profile cpu -o image && docker build image
      envbuilder render --profile rocm --target devcontainer -o .
      envbuilder render --profile cuda --target requirements > cuda.txt
      envbuilder render --profile mps --target script -o mac
      envbuilder render --profile zendnn --target conda -o env
      envbuilder render --profile cpu,cuda --target bake -o images
    """
    settings = load_settings()
    library = variants.library(settings)
    if target == render.BAKE:
        _bake(profile, python, output, target_host, library, settings)
        return
    if len(profile) > 1:
        raise InvalidError(
            f"{', '.join(profile)}: only --target bake accepts several profiles",
            "Name one profile, or add --target bake.",
        )
    name = next(iter(profile), None)
    chosen, lock = locked_profile(library, settings, name, target_host)
    kind = target or render.default_target(chosen)
    default = chosen.image_python if kind in render.IMAGE_TARGETS else chosen.python.default
    urls = render.source_urls(lock, settings)
    if kind == "conda":
        from envbuilder.packages.conda import lock as conda

        urls |= conda.channel_urls(chosen.conda.channels, settings)
    project = project_layer.planned(settings) if kind == "dockerfile" else None
    given = {"--environment": settings.environment, "--python-version": python}
    options: list[str] = []
    for option, value in given.items():
        if value and value != DEFAULT:
            options += (option, value)
    files = render.render(
        chosen,
        lock,
        kind,
        python or default,
        urls,
        environment=environments.of(settings),
        project=project,
        chosen_by=options,
    )
    if output is None:
        console.document(next(files).content.decode())
        return
    own = _folders(lock, python or default, kind, settings) if kind in render.IMAGE_TARGETS else ()
    for path in (*write((*files, *own), output), *(_copied(project, output) if project else ())):
        console.result(str(path))


def _folders(
    lock: Lock, python: str, kind: render.RenderTarget, settings: Settings
) -> Iterator[render.RenderedFile]:
    """Yield an archive of each project folder that the Dockerfile builds as a package."""
    from envbuilder.packages.sources import source
    from envbuilder.packages.store import Store

    for file in chain.from_iterable(t.packages for t in render.targets_for(lock, python)):
        if file.recipe and file.recipe.kind == "path":
            source.obtain(file.name, file.recipe, settings)
            source.require_public(file.recipe, settings)
            sha256 = file.recipe.sha256
            yield render.RenderedFile(
                name=f"{render.IMAGE_TARGETS[kind]}sources/{file.name}-{sha256[:12]}.tar",
                content=Store.of(settings).path(sha256).read_bytes(),
            )


def _bake(
    names: tuple[str, ...],
    python: str | None,
    output: Path | None,
    target_host: Path | None,
    library: Library,
    settings: Settings,
) -> None:
    """Print a bake file, or write it to a folder together with the files that it needs."""
    sources = []
    for name in names or (None,):
        profile, lock = locked_profile(library, settings, name, target_host)
        urls = render.source_urls(lock, settings)
        version = python or profile.image_python
        sources.append(render.BakeSource(profile=profile, lock=lock, python=version, urls=urls))
    project = project_layer.planned(settings)
    files = tuple(render.bake_files(sources, project))
    if output is None:
        console.document(files[0].content.decode())
        return
    for package_source in sources:
        own = _folders(package_source.lock, package_source.python, "dockerfile", settings)
        files += tuple(replace(f, name=f"{package_source.profile.name}/{f.name}") for f in own)
    written = [*write(files, output)]
    if project:
        for source in sources:
            written += _copied(project, output / source.profile.name)
    for path in written:
        console.result(str(path))


def _copied(project: project_layer.ProjectLayer, folder: Path) -> Iterator[Path]:
    """Copy the project's own files to the subfolder of `folder` that the Dockerfile reads.

    Yield the path of the subfolder. Raise `InvalidError` if the subfolder cannot be written, or if
    it exists and was not created by envbuilder.
    """
    target = folder / project_layer.CONTEXT
    if os.path.lexists(target) and not files.is_marked(target):
        raise InvalidError(
            f"{target}: exists and was not made by envbuilder",
            "Move it away, or name another folder with --output.",
        )
    try:
        if target.exists():
            files.remove(target, folder)
        target.mkdir()
        files.mark_folder(target)
        project_layer.copy(project, target / "files")
    except OSError as error:
        raise InvalidError(f"{target}: cannot be written: {error.strerror or error}") from error
    yield target


def write(rendered: tuple[render.RenderedFile, ...], folder: Path) -> tuple[Path, ...]:
    """Write generated files to a folder and return their paths.

    Raise `InvalidError` if a file cannot be written. If one of the files exists and was not
    generated by envbuilder, raise `InvalidError` before anything is written.
    """
    mark = resources.MARK.encode()
    for file in rendered:
        target = folder / file.name
        ours = not target.exists() or (
            target.is_file()
            and (mark in (content := target.read_bytes()) or content == file.content)
        )
        if not ours:
            raise InvalidError(
                f"{target}: exists and was not made by envbuilder",
                "Move it away, or name another folder with --output.",
            )
    try:
        for file in rendered:
            files.write(folder / file.name, file.content)
    except OSError as error:
        raise InvalidError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return tuple(folder / file.name for file in rendered)
