"""`envbuilder bundle`: pack all that profiles need into one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuilder.commands.options import base_image_option, json_option, profile_option
from envbuilder.core import console
from envbuilder.core import types as words
from envbuilder.core.errors import InvalidError
from envbuilder.host import probe
from envbuilder.packages import configuration
from envbuilder.profiles import choice
from envbuilder.profiles.library import Library

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings


def _listed(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split a comma-separated value; reject unknown platforms."""
    del ctx
    found = tuple(filter(None, (value or "").split(",")))
    unknown = [f for f in found if param.name == "platforms" and f not in words.PLATFORMS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(words.PLATFORMS)}")
    return found


@click.command("bundle", short_help="Pack all that profiles need into one file, to use offline.")
@profile_option
@click.option(
    "--platform",
    "platforms",
    metavar="OS/ARCH[,…]",
    callback=_listed,
    help="For which platforms: of environments, and of machines that build images for others."
    " Without it, for this machine's.",
)
@click.option(
    "--python-version",
    "pythons",
    metavar="X.Y[,…]",
    callback=_listed,
    help="For which Pythons. Without it, for the profile's default.",
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
    profile: str | None,
    platforms: tuple[words.Platform, ...],
    pythons: tuple[str, ...],
    base_image: str | None,
    output: Path,
    as_json: bool,
) -> None:
    """Pack locked files, profiles, locks, base image, MNIST and envbuilder itself into one file.

    --profile takes several names, separated by commas. Files that the store lacks are fetched
    first. On a machine without any network, `unbundle` puts everything in its place; the file is a
    plain tar, so that pip can install envbuilder from it.

    \b
    Examples:
      envbuilder bundle --profile cpu -o cpu.tar
      envbuilder bundle --profile cpu,cuda --platform linux/amd64,linux/arm64 -o all.tar
      envbuilder bundle --profile cpu --platform linux/amd64,macos/arm64 -o for-a-mac.tar
      tar -xf cpu.tar wheels && pip install --no-index --find-links wheels envbuilder-ml
    """
    from envbuilder.bundle import base_images as images
    from envbuilder.bundle import contents
    from envbuilder.bundle import format as form
    from envbuilder.bundle import write as packing

    found = configuration.load()
    progress = console.progress()
    library = Library.of(found)
    names = tuple(filter(None, (profile or "").split(","))) or (_fitting(found),)
    platforms = platforms or _own_platform()
    wanted = contents.select(names, platforms, pythons, library)
    parts = [*contents.texts(wanted, library.folders)]
    locked = contents.files(wanted, found, progress)
    itself = contents.of_envbuilder(wanted, platforms, found, progress)
    parts += itself
    parts += contents.of_files(locked, found, (p.member.sha256 for p in itself))
    dataset = contents.dataset(found, progress)
    parts += dataset
    lacks = [] if dataset else ["MNIST: verify will use the small subset that is shipped"]
    packed, missing = images.collect(
        contents.base_images(wanted, base_image, found), found, progress
    )
    parts += contents.of_bases(packed)
    lacks += missing
    manifest = contents.manifest(wanted, parts, lacks)
    digest = packing.write(output, manifest, parts, progress)
    told: dict[str, Any] = {
        "schema": 1,
        "file": str(output),
        "bytes": output.stat().st_size,
        "manifest": digest,
        "profiles": manifest.profiles,
        "platforms": manifest.platforms,
        "pythons": manifest.pythons,
        "members": {kind: len(manifest.of_kind(kind)) for kind in form.KINDS},
        "lacks": manifest.lacks,
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    counts = ", ".join(f"{n} {kind}" for kind, n in told["members"].items() if n)
    click.echo(f"{output}: {told['bytes'] / 1e6:.0f} MB: {counts}")
    click.echo(f"manifest sha256 {digest}")
    for lack in lacks:
        click.echo(f"not in it: {lack}")
    click.echo(f"There, without a network: envbuilder unbundle {output.name}")


def _fitting(settings: Settings) -> str:
    return choice.choose(Library.of(settings), settings, probe.host()).profile.name


def _own_platform() -> tuple[words.Platform, ...]:

    own = probe.host().platform
    if own is None:
        raise InvalidError("this machine's platform is not known", "Name one with --platform.")
    return (own,)
