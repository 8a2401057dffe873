"""`envbuilder add` and `envbuilder remove`: change a project's requirements and its locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from envbuilder.commands import lock as locks, resolution
from envbuilder.commands.options import environment_option, load_settings
from envbuilder.core import console, files
from envbuilder.core.errors import EnvbuilderError, Hint, InvalidError
from envbuilder.core.settings import DEFAULT, PROJECT_FILE, Settings
from envbuilder.locks.entries import Entry, of_project
from envbuilder.profiles.requirements import distribution
from envbuilder.project import environment_changes, environments

if TYPE_CHECKING:
    from envbuilder.project.variants import ReleaseOptions


@click.command("add")
@click.argument("requirements", nargs=-1, required=True, metavar="REQUIREMENT…")
@environment_option
@click.option(
    "--exact", is_flag=True, help="Accept each name as given, even if it looks misspelled."
)
def command(requirements: tuple[str, ...], exact: bool) -> int:
    """Add packages to `requirements:` of envbuilder.yaml, and lock the project.

    A requirement is a package, optionally with versions, extras and a marker (PEP 508). It replaces
    the line of a package that is already listed. Comments and order are kept, and so are the
    versions of other packages. Existing locks and this machine's lock are updated. If no lock can
    be made, or a file cannot be written, nothing is changed.

    \b
    Examples:
      envbuilder add einops "rich>=13"
      envbuilder add cv2 numpy=1.26
      envbuilder add --environment notebooks jupyterlab
    """
    settings = load_settings()
    text, path = read_project(settings)
    change = environment_changes.added(text, path, settings.environment, requirements, exact=exact)
    return apply_change(change, settings)


@click.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@environment_option
def remove(names: tuple[str, ...]) -> int:
    """Remove packages from `requirements:` of envbuilder.yaml, and lock the project.

    Comments and order of other packages are kept. If another file lists the package, such as
    requirements.txt, it must be removed there; the error names the file and line.

    \b
    Examples:
      envbuilder remove einops
      envbuilder remove --environment notebooks jupyterlab
    """
    settings = load_settings()
    text, path = read_project(settings)
    change = environment_changes.removed(
        text, path, settings.environment, names, project=path.parent
    )
    return apply_change(change, settings)


_LEFT = f"{PROJECT_FILE} was not changed."
_WRITABLE = "Free space or make the folder writable, then run the command again."


def read_project(settings: Settings) -> tuple[str, Path]:
    """Return the text and path of the project file. Raise `InvalidError` outside a project."""
    if settings.project is None:
        raise InvalidError(
            f"there is no {PROJECT_FILE} in this folder or any folder above it",
            Hint("Write one", ("init",)),
        )
    path = settings.project / PROJECT_FILE
    return files.read_text(path), path


def apply_change(change: environment_changes.Change, settings: Settings) -> int:
    """Write a change to the project file and the new locks, and return the exit code.

    The locks are made even if the project file does not change, because packages that it already
    lists may not be locked yet. Raise `InvalidError`, and write nothing, if no lock can be made or
    if the file was edited while the locks were being resolved, which may take minutes.
    """
    for note in change.notes:
        console.result(f"note: {note}")
    if not change.lines:
        console.result(f"{PROJECT_FILE}: nothing to change")
    return locks.write_and_report(
        _locked(change, settings), settings, f"{_LEFT} {_WRITABLE}", change
    )


def _concerned(environment: str, settings: Settings, choosing: ReleaseOptions) -> list[Entry]:
    """Return the locks that must be made again after a change to `environment`.

    These are the locks that already exist, and the locks for this machine. If `environment` is the
    default environment, they include the locks of all environments, because every other environment
    contains the default one.
    """
    every = of_project(settings, choosing=choosing)
    concerned = [entry for entry in every if environment in {DEFAULT, entry.environment}]
    here = locks.of_this_machine(concerned, settings)
    return [entry for entry in concerned if entry.earlier or entry.label in here]


def _without_effect(change: environment_changes.Change, settings: Settings) -> Iterator[str]:
    """Yield a note for each added package whose requirement is replaced by an override.

    Overrides can also come from requirements files that the project lists. Raise `InvalidError` if
    an added package is excluded.
    """
    environment = settings.environment
    before = settings.definition
    before_lines = environments.merged(before, environment).requirements if before else ()
    contents = environments.contents(change.definition, environment, change.path.parent)
    chosen = {distribution(text): text for text in contents.resolution.overrides}
    for text in environments.merged(change.definition, environment).requirements:
        name = distribution(text)
        if text in before_lines:
            continue
        if name in contents.resolution.exclude:
            raise InvalidError(
                f"{name} is excluded from every environment by exclude: or overrides: in"
                f" {PROJECT_FILE}",
                "Remove that entry first.",
            )
        if chosen.get(name, text) != text and text != name:
            yield (
                f"{chosen[name]} replaces {text}, because {PROJECT_FILE} or a file that it lists"
                " overrides it"
            )


def _locked(change: environment_changes.Change, settings: Settings) -> Sequence[resolution.Outcome]:
    """Resolve the locks of all environments that a change affects, and return the outcomes.

    Raise `InvalidError` if no lock can be made for any of these environments.
    """
    changed = replace(settings, definition=change.definition)
    try:
        for note in _without_effect(change, settings):
            console.result(f"note: {note}")
        outcomes = resolution.resolve_all(
            changed, partial(_concerned, settings.environment, changed)
        )
    except EnvbuilderError as error:
        error.hints = (Hint(_LEFT), *error.hints)
        raise
    failures = [outcome for outcome in outcomes if outcome.obstacle]
    if outcomes and len(failures) == len(outcomes):
        first = failures[0]
        others = f" (and for {len(failures) - 1} more)" if failures[1:] else ""
        what = f"{first.entry.label} cannot be locked{others}"
        raise InvalidError(f"{what}: {first.problem}", _LEFT)
    return outcomes
