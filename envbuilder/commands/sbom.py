"""`envbuilder sbom`: print the SBOM of a profile, generated from its lock."""

from __future__ import annotations

import click

from envbuilder.commands.options import (
    environment_option,
    load_settings,
    locked_profile,
    profile_option,
    python_option,
)
from envbuilder.core import console, types
from envbuilder.profiles.lock import lock_digest, select
from envbuilder.project import variants


@click.command("sbom")
@profile_option
@environment_option
@click.option(
    "--platform", type=click.Choice(types.PLATFORMS), help="Platform; without it, the first one."
)
@python_option
def command(profile: str | None, platform: str | None, python: str | None) -> None:
    """Print the SBOM of a lock's files in CycloneDX format, without building anything.

    Licences are included for wheels that were fetched before. `build` also writes the SBOM of its
    result and prints the path.

    \b
    Examples:
      envbuilder sbom --profile cpu
      envbuilder sbom --profile cuda --platform linux/arm64 > cuda.sbom.cdx.json
    """
    from envbuilder.builds import attestations
    from envbuilder.builds.plan import UsedBase

    settings = load_settings()
    chosen, lock = locked_profile(variants.library(settings), settings, profile)
    target = select(lock, platform or chosen.platforms[0], python or chosen.python.default)
    image = target.base if target.base and not target.base.suite else None
    shown_ref = f"{image.ref}@{image.digest}" if image and image.digest else image and image.ref
    base = UsedBase(ref=shown_ref, digest="") if shown_ref else None
    facts = {"lock": lock_digest(lock), "platform": target.platform, "python": target.python}
    files = (*target.fetched(managed=chosen.python.managed), lock.tool(target.platform))
    content = attestations.bill(chosen.name, files, base, facts, settings)
    console.document(content.decode())
