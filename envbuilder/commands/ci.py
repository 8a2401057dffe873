"""`envbuilder ci`: write a workflow that builds and verifies environments."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from envbuilder import __version__
from envbuilder.builds.render import RenderedFile
from envbuilder.bundle import self_wheel
from envbuilder.ci import matrix, workflow
from envbuilder.ci.matrix import BACKENDS, Omission, Row, Selection
from envbuilder.commands.options import load_settings, several
from envbuilder.commands.render import write
from envbuilder.core import console, decoding, resources, types
from envbuilder.core.errors import InvalidError
from envbuilder.profiles.names import suggestion

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile


_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What can label a runner of a CI service; workflows hold it as it is."""


def _pythons(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[types.PythonVersion, ...]:
    """Return checked versions of Python."""
    try:
        return decoding.convert(values, tuple[types.PythonVersion, ...])
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{' '.join(values)!r} is not like 3.12", param=param) from error


def _runners(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return labels by profile or accelerator, with or without a platform."""
    runners = {}
    for value in values:
        key, _, label = value.partition("=")
        name, at, platform = key.partition("@")
        if not (
            types.is_name(name)
            and (not at or platform in types.PLATFORMS)
            and _LABEL.fullmatch(label)
        ):
            raise click.BadParameter(
                f"{value!r} is not like cuda=LABEL or cuda@linux/arm64=LABEL", param=param
            )
        runners[key] = label
    return runners


def planned(
    names: tuple[str, ...],
    selection: Selection,
    runners: Mapping[str, str],
    provider: workflow.Provider,
) -> tuple[list[Row], list[Omission]]:
    """Return the rows for the project in this folder, and what has none."""
    each = [*matrix.profiles(load_settings(), names, Path.cwd())]
    omissions = [item for item in each if isinstance(item, Omission)]
    locked = [item for item in each if not isinstance(item, Omission)]
    _require_known(runners, [item.profile for item in locked])
    results = [*matrix.rows(locked, selection, workflow.SERVICES[provider].runners, runners)]
    omissions += [item for item in results if isinstance(item, Omission)]
    return [item for item in results if isinstance(item, Row)], omissions


def _require_known(runners: Mapping[str, str], profiles: Sequence[Profile]) -> None:
    """Raise `InvalidError` for a runner of nothing that is in the matrix."""
    available = sorted({p.name for p in profiles} | {p.accelerator for p in profiles})
    for key in runners:
        name = key.partition("@")[0]
        if name not in available:
            raise InvalidError(
                f"--runner {key}: no profile in the matrix is or has {name}",
                suggestion(name, available),
            )


_PATH = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._/-]*\.ya?ml")
_WHEEL = re.compile(
    rf"(?:[A-Za-z0-9._][A-Za-z0-9._-]*/)*envbuilder_ml-{re.escape(__version__)}-[a-z0-9-]+\.whl"
)


def _output(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return a path in the repository: the workflow holds the command that writes it."""
    if value is None:
        return ""
    if not _PATH.fullmatch(value) or ".." in value.split("/"):
        raise click.BadParameter(
            f"{value!r} is not the path of a YAML file in this folder", param=param
        )
    return value


def _wheel(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the path of a wheel of this version in the repository."""
    if value is None:
        return ""
    inside = _WHEEL.fullmatch(value) and ".." not in value.split("/")
    if not inside or not Path(value).is_file():
        raise click.BadParameter(
            f"{value!r} is not the path of a wheel of envbuilder {__version__} in this folder",
            param=param,
        )
    return value


@click.command("ci", short_help="Write a CI workflow that builds and verifies environments.")
@click.option(
    "--provider",
    required=True,
    type=click.Choice(workflow.PROVIDERS),
    help="The CI service.",
)
@click.option(
    "--profile",
    metavar="NAME,…",
    callback=several,
    help="Profiles to include. Without it, all that are not opt-in.",
)
@click.option(
    "--platform",
    multiple=True,
    type=click.Choice(types.PLATFORMS),
    help="Only this platform; may be repeated.",
)
@click.option(
    "--python-version",
    "python",
    metavar="X.Y",
    multiple=True,
    callback=_pythons,
    help="Python to use instead of each profile's default; may be repeated.",
)
@click.option(
    "--backend",
    multiple=True,
    type=click.Choice(BACKENDS),
    help="Backend to use; may be repeated. conda: where its packages are locked."
    "  [default: venv, where a profile has it]",
)
@click.option(
    "--runner",
    metavar="NAME[@PLATFORM]=LABEL",
    multiple=True,
    callback=_runners,
    help="Verify this accelerator or profile, such as cuda, on self-hosted runners with"
    " this label; may be repeated. Without a platform, it is each profile's first. GPU"
    " profiles without a runner are only built.",
)
@click.option("--quick", is_flag=True, help="Verify with a small subset of MNIST.")
@click.option(
    "--wheel",
    metavar="FILE",
    callback=_wheel,
    help="Wheel of envbuilder, relative to this folder, which jobs install. Without it, the package"
    " index must have this version.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=_output,
    help="File to write, relative to this folder. Without it, the workflow is printed.",
)
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 2 if the file is not up to date."
)
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON; write nothing.")
def command(
    provider: workflow.Provider,
    profile: tuple[str, ...],
    platform: tuple[types.Platform, ...],
    python: tuple[types.PythonVersion, ...],
    backend: tuple[types.Backend, ...],
    runner: Mapping[str, str],
    quick: bool,
    wheel: str,
    output: str,
    check: bool,
    as_json: bool,
) -> None:
    """Write a workflow with one job for each profile, platform, Python and backend.

    In a project, that is each of its environments on each of its profiles.

    Run it in the root of the repository. Beside the workflow, a requirements file holds what jobs
    install envbuilder from, each file by its hash. The workflow first checks the locks, and with
    --output that it is up to date itself. CPU profiles are verified; those of GPUs are only built,
    unless a self-hosted runner is named that has one. The last job puts all reports into one table,
    and fails if one became slower or less accurate than on the main branch and no busy or different
    machine explains it.

    \b
    Examples:
      envbuilder ci --provider github -o .github/workflows/environments.yml
      envbuilder ci --provider github --profile cpu,zendnn --quick
      envbuilder ci --provider github --runner cuda=gpu
      envbuilder ci --provider github --wheel ci/envbuilder_ml-0.1.0-py3-none-any.whl
      envbuilder ci --provider gitlab -o .gitlab-ci.yml
      envbuilder ci --provider github -o .github/workflows/environments.yml --check
      envbuilder ci --provider github --json
    """
    if check and not output:
        raise click.UsageError("--check needs --output, the file to check")
    selection = Selection(platforms=platform, pythons=python, backends=backend)
    rows, omissions = planned(profile, selection, runner, provider)
    if as_json:
        console.data({"schema": 1, "matrix": rows, "left_out": omissions})
        return
    source = resources.source_dir()
    settings = load_settings()
    from_checkout = not wheel and source is not None and source == Path.cwd().resolve()
    options = [*_options(provider, profile, selection, runner)]
    options += ["--quick"] if quick else []
    options += ["--wheel", wheel] if wheel else []
    plan = workflow.Workflow(
        provider=provider,
        rows=tuple(rows),
        omissions=tuple(omissions),
        arguments=("envbuilder", "ci", *options, *(("--output", output) if output else ())),
        output=output,
        project=settings.definition is not None,
        from_checkout=from_checkout,
        requirements=str(Path(output or "envbuilder.yml").with_suffix(".requirements.txt")),
        quick=quick,
    )
    plan = workflow.fitting(plan)
    text = workflow.text(plan)
    if check:
        again = shlex.join(plan.arguments)
        _require_current(output, text, again)
        if not from_checkout:
            _require_current(plan.requirements, _begin_of_own_line(wheel), again, whole=False)
        return
    rendered = [RenderedFile(name=Path(output).name, content=text.encode())]
    if not from_checkout:
        rendered.append(_requirements(plan, wheel, settings))
    if output:
        for written in write(tuple(rendered), Path(output).parent):
            console.result(str(written))
        return
    console.document(text)
    for file in rendered[1:]:
        console.message(f"note: --output writes {file.name}, too, which jobs install")


def _options(
    provider: workflow.Provider,
    names: tuple[str, ...],
    selection: Selection,
    runners: Mapping[str, str],
) -> Iterator[str]:
    """Yield the options that choose the same jobs again."""
    yield from ("--provider", provider)
    if names:
        yield from ("--profile", ",".join(names))
    for option, values in (
        ("--platform", selection.platforms),
        ("--python-version", selection.pythons),
        ("--backend", selection.backends),
        ("--runner", [f"{name}={label}" for name, label in runners.items()]),
    ):
        for value in values:
            yield from (option, value)


def _begin_of_own_line(wheel: str) -> str:
    """Return how a requirements file begins the line of envbuilder itself."""
    source = f"./{wheel}" if wheel else f"{self_wheel.DISTRIBUTION}=={__version__}"
    return f"{source} --hash=sha256:"


def _requirements(plan: workflow.Workflow, wheel: str, settings: Settings) -> RenderedFile:
    """Return the requirements file that jobs install."""
    if wheel:
        installed = self_wheel.Wheel(file=wheel, content=Path(wheel).read_bytes())
    else:
        installed = self_wheel.released(settings)
    extra = "conda" if any(row.backend == "conda" for row in plan.rows) else ""
    text = (
        f"# {resources.MARK}: run this again instead.\n#   {shlex.join(plan.arguments)}\n"
        f"{_begin_of_own_line(wheel)}{hashlib.sha256(installed.content).hexdigest()}\n"
        f"{self_wheel.pinned(installed, workflow.OLDEST_PYTHON, settings, extra)}"
    )
    return RenderedFile(name=Path(plan.requirements).name, content=text.encode())


def _require_current(path: str, expected: str, again: str, *, whole: bool = True) -> None:
    """Raise `InvalidError` unless a file is this text, or else holds it."""
    try:
        current = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: cannot be read: {error}", f"Run: {again}") from error
    if current != expected and (whole or expected not in current):
        raise InvalidError(f"{path}: is stale: it is not what it would be now", f"Run: {again}")
