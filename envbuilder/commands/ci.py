"""`envbuilder ci`: write a workflow that builds and verifies a project's environments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder import __version__
from envbuilder.build.render import RenderedFile
from envbuilder.ci import workflow
from envbuilder.ci.matrix import Selection
from envbuilder.ci.workflow import PROVIDERS
from envbuilder.commands.matrix import matrix_options, planned
from envbuilder.commands.render import write
from envbuilder.core import console, resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envbuilder.ci.workflow import Provider
    from envbuilder.core import types

_PATH = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._/-]*\.ya?ml")
_WHEEL = re.compile(
    rf"(?:[A-Za-z0-9._][A-Za-z0-9._-]*/)*envbuilder_ml-{re.escape(__version__)}-[a-z0-9-]+\.whl"
)


def _output(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return a path in the repository: the workflow holds the command that writes it."""
    del ctx
    if value is None:
        return ""
    if not _PATH.fullmatch(value) or ".." in value.split("/"):
        raise click.BadParameter(
            f"{value!r} is not the path of a YAML file in this folder", param=param
        )
    return value


def _wheel(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the path of a wheel of this version in the repository."""
    del ctx
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
    type=click.Choice(PROVIDERS),
    help="The CI service.",
)
@matrix_options
@click.option("--quick", is_flag=True, help="Verify with a small subset of MNIST.")
@click.option(
    "--wheel",
    metavar="FILE",
    callback=_wheel,
    help="Wheel of envbuilder, relative to this folder, which jobs install instead of the release.",
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
def command(
    provider: Provider,
    names: tuple[str, ...],
    platforms: tuple[types.Platform, ...],
    pythons: tuple[types.PythonVersion, ...],
    backends: tuple[types.Backend, ...],
    runners: Mapping[str, str],
    quick: bool,
    wheel: str,
    output: str,
    check: bool,
) -> None:
    """Write a workflow with one job for each row of `envbuilder matrix`.

    Run it in the root of the repository. The workflow first checks the locks, and with --output
    that it is up to date itself. CPU profiles are verified; those of GPUs are only built, unless a
    self-hosted runner is named that has one. The last job puts all reports into one table, and
    fails if one became slower or less accurate than on the main branch and no busy or different
    machine explains it.

    \b
    Examples:
      envbuilder ci --provider github -o .github/workflows/environments.yml
      envbuilder ci --provider github --profiles cpu,zendnn --quick
      envbuilder ci --provider github --runner cuda=gpu
      envbuilder ci --provider github --wheel ci/envbuilder_ml-0.1.0-py3-none-any.whl
      envbuilder ci --provider gitlab -o .gitlab-ci.yml
      envbuilder ci --provider github -o .github/workflows/environments.yml --check
    """
    if check and not output:
        raise click.UsageError("--check needs --output, the file to check")
    selection = Selection(platforms=platforms, pythons=pythons, backends=backends)
    rows, omissions = planned(names, selection, runners, provider)
    source = resources.source_dir()
    options = [*_options(provider, names, selection, runners)]
    options += ["--quick"] if quick else []
    options += ["--wheel", wheel] if wheel else []
    plan = workflow.Workflow(
        provider=provider,
        rows=tuple(rows),
        omissions=tuple(omissions),
        arguments=("envbuilder", "ci", *options, *(("--output", output) if output else ())),
        output=output,
        project=load_settings().definition is not None,
        from_checkout=not wheel and source is not None and source == Path.cwd().resolve(),
        wheel=wheel,
        quick=quick,
    )
    text = workflow.text(workflow.fitting(plan))
    if check:
        _require_current(Path(output), text, shlex.join(plan.arguments))
    elif output:
        path = Path(output)
        file = RenderedFile(name=path.name, content=text.encode())
        (written,) = write((file,), path.parent)
        console.result(str(written))
    else:
        console.document(text)


def _options(
    provider: Provider,
    names: tuple[str, ...],
    selection: Selection,
    runners: Mapping[str, str],
) -> Iterator[str]:
    """Yield the options that choose the same jobs again."""
    yield from ("--provider", provider)
    if names:
        yield from ("--profiles", ",".join(names))
    for option, values in (
        ("--platform", selection.platforms),
        ("--python-version", selection.pythons),
        ("--backend", selection.backends),
        ("--runner", [f"{name}={label}" for name, label in runners.items()]),
    ):
        for value in values:
            yield from (option, value)


def _require_current(path: Path, text: str, again: str) -> None:
    """Raise `InvalidError` unless a file has this text."""
    try:
        current = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: cannot be read: {error}", f"Run: {again}") from error
    if current != text:
        raise InvalidError(f"{path}: is stale: it is not what it would be now", f"Run: {again}")
