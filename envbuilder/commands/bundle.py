"""`envbuilder bundle`: pack all that profiles need into one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuilder.commands.options import (
    base_image_option,
    environment_option,
    json_option,
    load_settings,
    profiles_option,
)
from envbuilder.core import console, files, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import counted
from envbuilder.host import probe
from envbuilder.profiles import choice
from envbuilder.project import catalog

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

_NOUNS = {"project": "project file", "dataset": "dataset file", "base": "base image file"}
"""What a member is called if not by its kind."""


def _listed(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split a comma-separated value; reject unknown platforms."""
    del ctx
    items = tuple(filter(None, (value or "").split(",")))
    unknown = [f for f in items if param.name == "platforms" and f not in types.PLATFORMS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(types.PLATFORMS)}")
    return items


@click.command("bundle", short_help="Pack all that profiles need into one file, to use offline.")
@profiles_option
@environment_option
@click.option(
    "--platform",
    "platforms",
    metavar="OS/ARCH[,…]",
    callback=_listed,
    help="Platforms of environments, and of machines that build images for others."
    " Without it, this machine's.",
)
@click.option(
    "--python-version",
    "pythons",
    metavar="X.Y[,…]",
    callback=_listed,
    help="Pythons of environments. Without it, the profile's default.",
)
@base_image_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.",
)
@json_option
def command(
    profiles: tuple[str, ...],
    platforms: tuple[types.Platform, ...],
    pythons: tuple[str, ...],
    base_image: str | None,
    output: Path,
    as_json: bool,
) -> None:
    """Pack locked files, profiles, locks, base image, MNIST and envbuilder itself into one file.

    Files that the store lacks are fetched
    first. On a machine without any network, `unbundle` puts everything in its place; the file is a
    plain tar, so that pip can install envbuilder from it.

    In a project, it is the project's environment on these profiles that is packed, with
    envbuilder.yaml, the files of requirements that it names, and its locks; not the project's code.

    \b
    Examples:
      envbuilder bundle --profile cpu -o cpu.tar
      envbuilder bundle --profile cuda --environment test -o test.tar
      envbuilder bundle --profile cpu,cuda --platform linux/amd64,linux/arm64 -o all.tar
      envbuilder bundle --profile cpu --platform linux/amd64,macos/arm64 -o for-a-mac.tar
      tar -xf cpu.tar wheels && pip install --no-index --find-links wheels envbuilder-ml
    """
    from envbuilder.bundle import collect
    from envbuilder.bundle.format import KINDS, write

    files.require_replaceable(output, b"manifest-")
    settings = load_settings()
    progress = console.progress()
    library = catalog.library(settings)
    names = profiles or (_fitting(settings),)
    platforms = platforms or _this_platform()
    selection = collect.select(names, platforms, pythons, library)
    variants, environment = catalog.variants(settings), None
    if variants is None or settings.project is None:
        parts = [*collect.texts(selection, library.folders)]
    else:
        environment = settings.environment
        parts = [*collect.project_texts(selection, library, variants, settings.project)]
    locked = collect.files(selection, settings, progress)
    itself = collect.of_envbuilder(selection, platforms, settings, progress)
    parts += itself
    parts += collect.of_files(locked, settings, (p.member.sha256 for p in itself))
    dataset = collect.dataset(settings, progress)
    parts += dataset
    lacks = [] if dataset else ["MNIST: verify will use the small subset that is shipped"]
    images, missing = collect.bases(
        collect.needed_bases(selection, base_image, settings), settings, progress
    )
    parts += images
    lacks += missing
    manifest = collect.manifest(selection, parts, lacks, environment)
    digest = write(output, manifest, parts, progress)
    result: dict[str, Any] = {
        "schema": 1,
        "file": str(output),
        "bytes": output.stat().st_size,
        "manifest": digest,
        "profiles": manifest.profiles,
        "environment": manifest.environment,
        "platforms": manifest.platforms,
        "pythons": manifest.pythons,
        "members": {kind: len(manifest.of_kind(kind)) for kind in KINDS},
        "lacks": manifest.lacks,
    }
    if as_json:
        console.data(result)
        return
    console.result(f"{output}: {result['bytes'] / 1e6:.0f} MB: {_counts(result['members'])}")
    console.result(f"manifest sha256 {digest}")
    for lack in lacks:
        console.result(f"not in the bundle: {lack}")
    where = ", in the project's folder" if environment else ""
    console.result(f"On the machine without a network{where}: envbuilder unbundle {output.name}")


def _counts(members: dict[str, int]) -> str:
    return ", ".join(counted(n, _NOUNS.get(kind, kind)) for kind, n in members.items() if n)


def _fitting(settings: Settings) -> str:
    return choice.choose(catalog.library(settings), settings, probe.host()).profile.name


def _this_platform() -> tuple[types.Platform, ...]:
    platform = probe.host().platform
    if platform is None:
        raise InvalidError("this machine's platform is not known", "Name one with --platform.")
    return (platform,)
