"""`envbuilder bundle` and `unbundle`: pack what profiles need into one file, and unpack it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuilder.commands.options import (
    EXISTING_FILE,
    FILE,
    base_image_option,
    environment_option,
    json_option,
    load_settings,
    profiles_option,
    require_signature_option,
)
from envbuilder.core import console, types
from envbuilder.core.errors import Hint, InvalidError, counted
from envbuilder.core.settings import DEFAULT, LOCKS, Settings
from envbuilder.host import probe
from envbuilder.profiles import choice
from envbuilder.project import variants

if TYPE_CHECKING:
    from envbuilder.bundle.contents import Unpacked


_NOUNS = {"project": "project file", "dataset": "dataset file", "base": "base image file"}
"""Kind of bundle member → its name in messages, where that differs from the kind's own name."""


def _listed(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split a value at its commas, and return its items.

    Raise `BadParameter` if the value contains an unknown platform.
    """
    items = tuple(filter(None, (value or "").split(",")))
    unknown = [f for f in items if param.name == "platform" and f not in types.PLATFORMS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(types.PLATFORMS)}")
    return items


@click.command("bundle")
@profiles_option
@environment_option
@click.option(
    "--platform",
    metavar="OS/ARCH[,…]",
    callback=_listed,
    help=(
        "Platforms of the environments, and of machines that build images for other platforms."
        " Without it, this machine's."
    ),
)
@click.option(
    "--python-version",
    "python",
    metavar="X.Y[,…]",
    callback=_listed,
    help="Python versions of the environments. Without it, the profile's default.",
)
@base_image_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=FILE,
    help="The file to write.",
)
@json_option
def command(
    profile: tuple[str, ...],
    platform: tuple[types.Platform, ...],
    python: tuple[str, ...],
    base_image: str | None,
    output: Path,
    as_json: bool,
) -> None:
    """Pack locked files, profiles, locks, base image, MNIST and envbuilder itself into one file.

    Missing files are fetched first. On a machine without a network, `unbundle` installs everything.
    The file is a plain tar, from which pip can install envbuilder.

    In a project, the project's environment on these profiles is packed, with envbuilder.yaml, its
    requirements files and its locks, but not the project's code.

    \b
    Examples:
      envbuilder bundle --profile cpu -o cpu.tar
      envbuilder bundle --profile cuda --environment test -o test.tar
      envbuilder bundle --profile cpu,cuda --platform linux/amd64,linux/arm64 -o all.tar
      envbuilder bundle --profile cpu --platform linux/amd64,macos/arm64 -o for-a-mac.tar
      tar -xf cpu.tar wheels && pip install --no-index --find-links wheels envbuilder-ml
    """
    from envbuilder.bundle import contents
    from envbuilder.bundle.format import KINDS, is_bundle, write

    console.Place("--output", output, is_bundle).require()
    settings = load_settings()
    progress = console.progress()
    library = variants.library(settings)
    names = profile or (choice.choose(library, settings, probe.host()).profile.name,)
    platforms = platform or _this_platform()
    selection = contents.select(names, platforms, python, library)
    project = variants.of_project(settings)
    environment = None if project is None else settings.environment
    parts = [*contents.texts(selection, library, project, settings.project)]
    locked = contents.locked_files(selection, settings, progress)
    itself = contents.of_envbuilder(selection, platforms, settings, progress)
    parts += itself
    parts += contents.of_files(locked, settings, (p.member.sha256 for p in itself))
    dataset = contents.dataset(settings, progress)
    parts += dataset
    lacks = [] if dataset else ["MNIST: verify will use the small subset shipped with envbuilder"]
    images, missing = contents.bases(
        contents.needed_bases(selection, base_image, settings), settings, progress
    )
    parts += images
    lacks += missing
    manifest = contents.manifest(selection, parts, lacks, environment)
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
    suffix = ", in the project's folder" if environment else ""
    console.hints([Hint(f"On the machine without a network{suffix}", ("unbundle", output.name))])


def _counts(members: dict[str, int]) -> str:
    return ", ".join(counted(n, _NOUNS.get(kind, kind)) for kind, n in members.items() if n)


def _this_platform() -> tuple[types.Platform, ...]:
    platform = probe.host().platform
    if platform is None:
        raise InvalidError("this machine's platform is unknown", "Name one with --platform.")
    return (platform,)


@click.command("unbundle")
@click.argument("file", type=EXISTING_FILE)
@click.option("--force", is_flag=True, help="Replace your own profiles and locks that differ.")
@require_signature_option
@json_option
def unbundle(file: Path, force: bool, as_json: bool) -> None:
    """Check a bundle, and put its contents where builds find them.

    Every member is checked by its hash. Locked files go into the store, MNIST into its cache, base
    images into the engine if one answers, profiles and locks into your configuration folder.
    Existing files are not written again: after an interruption, run the same command again.

    For a project's bundle, run the command in a copy of that project. None of its files is changed;
    locks that differ from the bundle's are listed.

    \b
    Examples:
      envbuilder unbundle cpu.tar
      envbuilder unbundle /media/stick/cluster.tar --json
      envbuilder unbundle cpu.tar --require-signature team.pub
    """
    import msgspec

    from envbuilder.bundle.contents import unpack

    settings = load_settings()
    taken = unpack(file, settings, console.progress(), force=force)
    manifest = taken.manifest
    commands = _next(taken)
    if as_json:
        console.data(
            {
                "schema": 1,
                "bundle": {"sha256": taken.digest, "made_by": manifest.made_by},
                "profiles": manifest.profiles,
                "platforms": manifest.platforms,
                "environment": manifest.environment,
                "pythons": manifest.pythons,
                "lacks": manifest.lacks,
                "new": taken.new,
                "there": taken.present,
                "written": [str(d.path) for d in taken.written],
                "bases": msgspec.to_builtins(taken.bases),
                "signed": msgspec.to_builtins(taken.signed),
                "differences": msgspec.to_builtins(taken.differences),
                "next": [hint.command_line() for hint in commands],
            }
        )
        return
    console.result(f"{file}: intact; manifest sha256 {taken.digest}")
    if taken.signed:
        console.result(f"signed by key {taken.signed.keyid}")
    console.result(f"{counted(taken.new, 'file')} added, {taken.present} already present")
    for draft in taken.written:
        console.result(f"wrote {draft.path}{f' ({draft.why})' if draft.why else ''}")
    for image in taken.bases:
        location = "in the engine" if image.loaded else f"in {image.folder}"
        console.result(f"base image {image.name or '(without a name)'}: {location}")
    for lack in manifest.lacks:
        console.result(f"not in the bundle: {lack}")
    for path in taken.differences:
        console.result(f"the bundle's {path} is not this project's: builds use the project's own")
    if taken.differences:
        console.result("To use the bundle's locks:")
        console.result(f"  {shlex.join(_extraction(file, settings))}")
    console.result("Next:" if manifest.environment is None else "Next, in the project's folder:")
    console.hints(commands)


def _next(taken: Unpacked) -> tuple[Hint, ...]:
    """Return hints with the commands to run next.

    These commands build, verify or run the unpacked profiles.
    """
    commands: list[tuple[str, ...]] = []
    locks = {member.path for member in taken.manifest.of_kind("lock")}
    environment = taken.manifest.environment
    for name in taken.manifest.profiles:
        if environment is not None:
            other = () if environment == DEFAULT else ("--environment", environment)
            commands.append(("verify", "--profile", name, *other))
            commands.append(("run", "--profile", name, *other, "--", "COMMAND"))
            continue
        verify = ("verify", "--profile", name, "--backend")
        commands.append((*verify, "venv"))
        if f"locks/{name}.conda.json" in locks:
            commands.append((*verify, "conda"))
        for image in taken.bases:
            if image.loaded:
                commands.append((*verify, "docker", "--base-image", image.name))
            else:
                build = ("build", "--profile", name, "--base-image", f"oci:{image.folder}")
                commands.append((*build, "--output", "IMAGE.tar"))
    return tuple(Hint("", command) for command in commands)


def _extraction(file: Path, settings: Settings) -> tuple[str, ...]:
    """Return the command that extracts the locks in a bundle into the current project."""
    folder = str(settings.project)
    return ("tar", "-xf", str(file), "-C", folder, "--strip-components=1", f"project/{LOCKS}")
