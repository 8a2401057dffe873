"""`envbuilder reproduce`: build an environment twice from scratch, and compare the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import (
    builder_option,
    environment_options,
    json_option,
    load_settings,
    python_option,
)
from envbuilder.core import console
from envbuilder.core.errors import BUILD_FAILED

if TYPE_CHECKING:
    from envbuilder.builds.reproduce import Outcome
    from envbuilder.builds.request import Request

_SHOWN = 20


@click.command("reproduce")
@environment_options
@python_option
@builder_option
@json_option
def command(
    request: Request,
    as_json: bool,
) -> int:
    """Build twice from scratch, compare the digests, and list the differences.

    For images, compares the digest of the configuration, which covers every layer's uncompressed
    bytes; for other environments, that of the file tree.

    The second build reads copies of all files from another folder, uses no cache of the first, and
    runs with another umask, time zone, language and working folder. Neither result is kept. Exits
    with 0 if both are equal, 1 if they differ.

    Lists the differing configuration keys and layers of an image, or files of other environments.
    An image contains the project's `files:`, as with `build`.

    \b
    Examples:
      envbuilder reproduce --profile cpu --backend docker
      envbuilder reproduce --profile cpu --builder layers
      envbuilder reproduce --profile zendnn --backend venv --json
    """
    from envbuilder.builds import reproduce

    outcome = reproduce.run(request, load_settings(), console.progress())
    if as_json:
        console.data(outcome)
    else:
        _print(outcome)
    return 0 if outcome.status == "equal" else BUILD_FAILED


def _print(outcome: Outcome) -> None:
    first, second = outcome.seconds
    made_by = ", ".join(f"{name} {version}" for name, version in outcome.made_by.items())
    subject = f"{outcome.profile} ({outcome.backend}, {made_by or outcome.builder})"
    took = f"built in {first:.1f} s and {second:.1f} s"
    if outcome.status == "equal":
        console.result(f"{subject}: equal, {outcome.compared} {outcome.digests[0]}, {took}")
        if outcome.manifest_digests and outcome.manifest_digests[0] == outcome.manifest_digests[1]:
            console.result(f"  manifest {outcome.manifest_digests[0]}, as shown by registries")
        return
    console.result(f"{subject}: different, {took}")
    for which, digest in zip(("first", "second"), outcome.digests, strict=True):
        console.result(f"  {which:6} {outcome.compared} {digest}")
    for difference in outcome.differences[:_SHOWN]:
        console.result(f"  {difference.path}: {' and '.join(difference.digests)}")
    if (more := len(outcome.differences) - _SHOWN) > 0:
        console.result(f"  and {more} more: see --json")
