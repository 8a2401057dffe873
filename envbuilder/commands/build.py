"""`envbuilder build`: build environments from locked profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.commands.options import (
    base_image_option,
    builder_option,
    image_ref,
    json_option,
    load_settings,
    output_option,
    profiles_option,
    push_option,
    python_option,
    request_option,
    request_options,
    require_image,
    require_signature_option,
    target_host_option,
)
from envbuilder.core import console
from envbuilder.core.errors import (
    BUILD_FAILED,
    INVALID,
    NOTHING_FITS,
    TOOL_MISSING,
    VERIFY_FAILED,
    EnvbuilderError,
    Hint,
    InvalidError,
    clipped,
)
from envbuilder.core.settings import Settings
from envbuilder.profiles.backends import makes_image
from envbuilder.project import variants

if TYPE_CHECKING:
    from envbuilder.builds.plan import BuildResult
    from envbuilder.builds.request import Planned, Request


@click.command("build")
@request_options(profiles_option)
@python_option
@base_image_option
@builder_option
@output_option
@push_option
@request_option("--dry-run", is_flag=True, help="Print the plan as JSON; fetch and build nothing.")
@request_option("--rebuild", is_flag=True, help="Build even if the result already exists.")
@request_option("--tag", metavar="TAG", callback=image_ref, help="Additional tag for the image.")
@target_host_option
@require_signature_option
@json_option
def command(
    profile: tuple[str, ...],
    request: Request,
    as_json: bool,
) -> int:
    """Fetch the files in the profile's lock, then build from them without a network.

    For an image, prints the manifest's digest, which registries use, and the configuration's
    digest, which is the image id in engines. --json has both; its `digest` is that of the
    configuration.

    Several profiles are all checked before the first is built. A failure does not stop the others;
    the exit code is that of the worst failure.

    \b
    Examples:
      envbuilder build --profile cpu --backend venv
      envbuilder build --profile cuda --backend docker --tag me/cuda
      envbuilder build --profile cpu,zendnn,cuda --backend docker
      envbuilder build --profile cpu --builder layers --output cpu.tar
      envbuilder build --profile cpu --push ghcr.io/me/cpu:1
      envbuilder build --profile zendnn --dry-run
      envbuilder build --target-host laptop.json --backend docker
      envbuilder build --profile cpu --require-signature team.pub
    """
    settings = load_settings()
    request = replace(request, profile=next(iter(profile), None), with_project=True, restore=True)
    if len(profile) > 1:
        return _build_several(profile, request, settings, as_json=as_json)
    planned = pipeline.prepare(request, settings, console.progress(), running=False)
    require_image(planned.backend)
    if request.output and not makes_image(planned.backend):
        raise InvalidError(
            "--output applies only to images", "Add --backend docker, or remove --output."
        )
    if request.tag and request.push and not request.output:
        raise InvalidError(
            "--tag names the image in the engine, but --push sends it only to a registry",
            f"To add a second name in the registry, push again: --push {request.tag}."
            " No layer is sent twice.",
        )
    if request.dry_run:
        console.data(planned.plan, indent=1)
        return 0
    result = pipeline.finish(planned).result
    if as_json:
        console.data(result)
        return 0
    how = f"built in {result.seconds:.1f} s" if result.status == "built" else "unchanged, reused"
    console.result(f"{result.artifact.ref} ({how})")
    if result.artifact.manifest_digest:
        console.result(f"  manifest {result.artifact.manifest_digest}")
    if result.artifact.config_digest:
        console.result(f"  config   {result.artifact.config_digest}")
    return 0


# --- several profiles

_LONGEST = 200
"""Maximum length, in characters, of an artifact's name or an error message in the table. Error
messages are also printed in full above the table."""
_ORDER = (INVALID, NOTHING_FITS, TOOL_MISSING, BUILD_FAILED, VERIFY_FAILED)
"""Exit codes, worst first. A build checks for the corresponding problems in the same order."""


class _Outcome(NamedTuple):
    """The outcome for one profile: a planned build, a finished build, or an error."""

    profile: str
    build: Planned | None = None
    error: EnvbuilderError | None = None
    result: BuildResult | None = None


def _build_several(
    profiles: Sequence[str], request: Request, settings: Settings, *, as_json: bool
) -> int:
    """Build several profiles and print the outcome of each; return the worst exit code."""
    _require_no_place(request, profiles[0])
    library = variants.library(settings)
    for name in profiles:
        library.named(name)
    outcomes = [_planned(replace(request, profile=name), settings) for name in profiles]
    if request.dry_run:
        plans = [outcome.build.plan for outcome in outcomes if outcome.build]
        console.data({"schema": 1, "plans": plans}, indent=1)
    else:
        outcomes = list(map(_built, outcomes))
    for outcome in outcomes:
        if outcome.error:
            console.error(f"{outcome.profile}: {outcome.error.message}", outcome.error.hints)
    if as_json and not request.dry_run:
        console.data({"schema": 1, "builds": list(map(_as_data, outcomes))})
    elif not request.dry_run:
        console.rich_console().print(console.table(_COLUMNS, map(_cells, outcomes)))
    codes = [outcome.error.exit_code for outcome in outcomes if outcome.error]
    return min(codes, key=_ORDER.index, default=0)


def _planned(request: Request, settings: Settings) -> _Outcome:
    """Plan the build of one of several profiles, and return the planned build or the error.

    Each line that is printed while planning starts with the name of the profile.
    """
    name = str(request.profile)
    note = console.progress().note
    progress = console.PlainProgress(lambda line: note(f"{name}: {line}"))
    try:
        build = pipeline.prepare(request, settings, progress, running=False)
        require_image(build.backend)
    except EnvbuilderError as error:
        return _Outcome(name, error=error)
    return _Outcome(name, build)


def _built(outcome: _Outcome) -> _Outcome:
    """Finish a planned build, and return the outcome with the build's result or error.

    If the outcome has no planned build, return it unchanged.
    """
    if outcome.build is None:
        return outcome
    try:
        return outcome._replace(result=pipeline.finish(outcome.build).result)
    except EnvbuilderError as error:
        return outcome._replace(error=error)


def _require_no_place(request: Request, first: str) -> None:
    """Raise `InvalidError` if the request has an option that applies only to a single image.

    These options are `--tag`, `--output` and `--push`.
    """
    options = {"--tag": request.tag, "--output": request.output, "--push": request.push}
    for option, value in options.items():
        if value:
            given = (option, value)
            raise InvalidError(
                f"{option} applies to a single image, but several profiles are selected",
                Hint(
                    "First build all of them without it. Then run this for each, which reuses the"
                    " image",
                    ("build", "--profile", first, *given),
                ),
            )


def _as_data(outcome: _Outcome) -> dict[str, Any]:
    if outcome.result:
        data: dict[str, Any] = msgspec.to_builtins(outcome.result)
        return data
    assert outcome.error is not None, "a build has a result or an error"
    return {
        "schema": 1,
        "status": "failed",
        "profile": outcome.profile,
        **({"backend": outcome.build.backend} if outcome.build else {}),
        "error": {
            "message": outcome.error.message,
            "hint": outcome.error.hint,
            "exit_code": outcome.error.exit_code,
        },
    }


_COLUMNS: dict[str, dict[str, Any]] = {
    "profile": {},
    "status": {"no_wrap": True},
    "backend": {"no_wrap": True},
    "seconds": {"justify": "right", "no_wrap": True},
    "result": {"overflow": "fold"},
}


def _cells(outcome: _Outcome) -> tuple[str, ...]:
    """Return the cells of the table row that shows an outcome."""
    if result := outcome.result:
        status = result.status
        seconds = f"{result.seconds:.1f}"
        ends = result.artifact.ref
    else:
        message = outcome.error.message if outcome.error else ""
        status = "failed"
        seconds = ""
        ends = message.partition("\n")[0]
    backend = outcome.build.backend if outcome.build else ""
    return (outcome.profile, status, backend, seconds, clipped(console.one_line(ends), _LONGEST))
