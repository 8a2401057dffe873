"""`envbuilder unbundle`: unpack a bundle to where builds look for its contents."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import json_option, require_signature_option, requiring
from envbuilder.core import console
from envbuilder.core.project_file import DEFAULT
from envbuilder.core.settings import LOCKS
from envbuilder.core.settings import load as load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.bundle.unpack import Unpacked
    from envbuilder.core.settings import Settings


@click.command("unbundle", short_help="Unpack what `bundle` packed; needs no network.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--force", is_flag=True, help="Replace your own profiles and locks that differ.")
@require_signature_option
@json_option
def command(file: Path, force: bool, require_signature: tuple[Path, ...], as_json: bool) -> None:
    """Check a bundle, and put its contents where builds look for them.

    Every member is checked by its hash. Locked files go into the store, MNIST into its cache, base
    images into the engine if one answers, profiles and locks into your configuration folder. What
    is present already is not written again: after an interruption, run the same command again.

    A bundle of a project belongs to a copy of that project: run the command there. No file of the
    project is changed; a lock that is not the bundle's is named.

    \b
    Examples:
      envbuilder unbundle cpu.tar
      envbuilder unbundle /media/stick/cluster.tar --json
      envbuilder unbundle cpu.tar --require-signature team.pub
    """
    import msgspec

    from envbuilder.bundle.unpack import unpack

    settings = requiring(load_settings(), require_signature)
    taken = unpack(file, settings, console.progress(), force=force)
    manifest = taken.manifest
    commands = _next(taken)
    if as_json:
        result = {
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
            "bases": [msgspec.to_builtins(image) for image in taken.bases],
            "signed": msgspec.to_builtins(taken.signed),
            "differences": msgspec.to_builtins(taken.differences),
            "next": commands,
        }
        console.data(result)
        return
    console.result(f"{file}: intact; manifest sha256 {taken.digest}")
    if taken.signed:
        console.result(f"signed by key {taken.signed.keyid}")
    console.result(f"{taken.new} files added, {taken.present} present already")
    for draft in taken.written:
        console.result(f"wrote {draft.path}{f' ({draft.why})' if draft.why else ''}")
    for image in taken.bases:
        place = "in the engine" if image.loaded else f"in {image.folder}"
        console.result(f"base image {image.name or '(without a name)'}: {place}")
    for lack in manifest.lacks:
        console.result(f"not in the bundle: {lack}")
    for line in _differences(taken, file, settings):
        console.result(line)
    console.result("Next:" if manifest.environment is None else "Next, in the project's folder:")
    for line in commands:
        console.result(f"  {line}")


def _next(taken: Unpacked) -> tuple[str, ...]:
    """Return commands that build or verify what the bundle contains."""
    commands = []
    locks = {member.path for member in taken.manifest.of_kind("lock")}
    environment = taken.manifest.environment
    for name in taken.manifest.profiles:
        if environment is not None:
            other = "" if environment == DEFAULT else f" --environment {environment}"
            commands.append(f"envbuilder verify --profile {name}{other}")
            commands.append(f"envbuilder run --profile {name}{other} -- COMMAND")
            continue
        commands.append(f"envbuilder verify --profile {name} --backend venv")
        if f"locks/{name}.conda.json" in locks:
            commands.append(f"envbuilder verify --profile {name} --backend conda")
        commands += [
            f"envbuilder verify --profile {name} --backend docker --base-image {image.name}"
            if image.loaded
            else f"envbuilder build --profile {name} --base-image oci:{image.folder}"
            " --output IMAGE.tar"
            for image in taken.bases
        ]
    return tuple(commands)


def _differences(taken: Unpacked, file: Path, settings: Settings) -> Iterator[str]:
    """Yield what to know about locks of the project that are not the bundle's."""
    words = {
        "missing": "is not in this project: it cannot be built",
        "different": "is not this project's, which builds use",
    }
    for difference in taken.differences:
        yield f"the bundle's {difference.path} {words[difference.state]}"
    if taken.differences:
        source, target = shlex.quote(str(file)), shlex.quote(str(settings.project))
        yield "To use the bundle's:"
        yield f"  tar -xf {source} -C {target} --strip-components=1 project/{LOCKS}"
