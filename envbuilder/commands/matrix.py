"""`envbuilder matrix`: list what CI can build and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder.ci.matrix import BACKENDS, Omission, Row, Selection, rows
from envbuilder.ci.workflow import SERVICES
from envbuilder.commands.options import json_option
from envbuilder.core import console, decoding, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.core.text import gigabytes
from envbuilder.profiles.profile import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.ci.workflow import Provider
    from envbuilder.profiles.profile import Profile


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return names that commas separate."""
    del ctx
    names = tuple(filter(None, (name.strip() for name in (value or "").split(","))))
    for name in names:
        if not types.is_name(name):
            raise click.BadParameter(f"{name!r} is not the name of a profile", param=param)
    return tuple(dict.fromkeys(names))


def _pythons(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[types.PythonVersion, ...]:
    """Return checked versions of Python."""
    del ctx
    try:
        return decoding.convert(values, tuple[types.PythonVersion, ...])
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{' '.join(values)!r} is not like 3.12", param=param) from error


def _runners(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return labels by profile or accelerator, with or without a platform."""
    del ctx
    runners = {}
    for value in values:
        key, _, label = value.partition("=")
        name, at, platform = key.partition("@")
        if not (
            types.is_name(name)
            and (not at or platform in types.PLATFORMS)
            and types.is_runner_label(label)
        ):
            raise click.BadParameter(
                f"{value!r} is not like cuda=LABEL or cuda@linux/arm64=LABEL", param=param
            )
        runners[key] = label
    return runners


def matrix_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select rows.

    They are `--profiles --platform --python-version --backend --runner`.
    """
    for option in reversed(
        (
            click.option(
                "--profiles",
                "names",
                metavar="NAME,…",
                callback=_names,
                help="Profiles to include. Without it, all that are not opt-in.",
            ),
            click.option(
                "--platform",
                "platforms",
                multiple=True,
                type=click.Choice(types.PLATFORMS),
                help="Only this platform; may be repeated.",
            ),
            click.option(
                "--python-version",
                "pythons",
                metavar="X.Y",
                multiple=True,
                callback=_pythons,
                help="Python to use instead of each profile's default; may be repeated.",
            ),
            click.option(
                "--backend",
                "backends",
                multiple=True,
                type=click.Choice(BACKENDS),
                help="Backend to use; may be repeated. conda: where its packages are locked."
                "  [default: venv, where a profile has it]",
            ),
            click.option(
                "--runner",
                "runners",
                metavar="NAME[@PLATFORM]=LABEL",
                multiple=True,
                callback=_runners,
                help="Verify this accelerator or profile, such as cuda, on self-hosted runners with"
                " this label; may be repeated. Without a platform, it is each profile's first. GPU"
                " profiles without a runner are only built.",
            ),
        )
    ):
        function = option(function)
    return function


@click.command("matrix", short_help="List what CI can build and verify.")
@matrix_options
@json_option
def command(
    names: tuple[str, ...],
    platforms: tuple[types.Platform, ...],
    pythons: tuple[types.PythonVersion, ...],
    backends: tuple[types.Backend, ...],
    runners: dict[str, str],
    as_json: bool,
) -> None:
    """List what CI can build and verify: one job for each profile, platform, Python and backend.

    For a project, that is each of its environments on each of its profiles. Profiles of GPUs are
    only built, unless a runner is named that has one. Labels are those of GitHub's runners, sizes
    are lower bounds.

    \b
    Examples:
      envbuilder matrix
      envbuilder matrix --profiles cpu,zendnn --backend venv --backend docker
      envbuilder matrix --runner cuda=gpu --json
    """
    selection = Selection(platforms=platforms, pythons=pythons, backends=backends)
    listed, omissions = planned(names, selection, runners, "github")
    if as_json:
        console.data({"schema": 1, "matrix": listed, "left_out": omissions})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("job", "what", "runner", "disk"):
        table.add_column(heading, no_wrap=True)
    for row in listed:
        table.add_row(row.id, row.what, row.runner, gigabytes(row.disk_bytes))
    console.rich_console().print(table)
    for omission in omissions:
        console.result(f"no job for {omission.label}: {omission.why}")


def planned(
    names: tuple[str, ...], selection: Selection, runners: Mapping[str, str], provider: Provider
) -> tuple[list[Row], list[Omission]]:
    """Return the rows for the project in this folder, and what has none."""
    from envbuilder.ci.matrix import profiles

    each = [*profiles(load_settings(), names, Path.cwd())]
    omissions = [item for item in each if isinstance(item, Omission)]
    locked = [item for item in each if not isinstance(item, Omission)]
    _require_known(runners, [item.profile for item in locked])
    results = [*rows(locked, selection, SERVICES[provider].runners, runners)]
    omissions += [item for item in results if isinstance(item, Omission)]
    return [item for item in results if isinstance(item, Row)], omissions


def _require_known(runners: Mapping[str, str], profiles: Sequence[Profile]) -> None:
    """Raise `InvalidError` for a runner of nothing that is in the matrix."""
    available = sorted({name for p in profiles for name in (p.name, p.accelerator)})
    for key in runners:
        name = key.partition("@")[0]
        if name not in available:
            raise InvalidError(
                f"--runner {key}: no profile in the matrix is or has {name}",
                suggestion(name, available),
            )
