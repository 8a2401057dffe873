"""`envbuilder init`: write a first envbuilder.yaml."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from envbuilder.commands.options import json_option, load_settings
from envbuilder.core import console, process, settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import save
from envbuilder.core.project_file import DEFAULT, Definition
from envbuilder.profiles import profile as profile_files
from envbuilder.project import environments, first_file
from envbuilder.project.catalog import ProjectProfiles

_NOTHING = (
    "No file that is read lists what the project requires, so the environment holds the framework"
    " alone. Add packages (envbuilder add NAME), or list a file under requirements_from"
)


class Impossible(Struct, frozen=True):
    """A profile that the project cannot be combined with."""

    profile: str
    reason: str
    hint: str


class Written(Struct, frozen=True, kw_only=True):
    """What was written, and what could not be told."""

    schema: int = 1
    file: str
    text: str
    unread: tuple[str, ...]
    """Files whose requirements could not be read, each with the reason."""
    notes: tuple[str, ...]
    """What of the listed file is left out, or that there is none."""
    impossible: tuple[Impossible, ...]
    next: tuple[str, ...]
    """Commands to go on with."""


@click.command("init", short_help="Write an envbuilder.yaml for the project in this folder.")
@json_option
def command(as_json: bool) -> None:
    """Write an envbuilder.yaml for the project in this folder, from the files that it has.

    Takes the first of uv.lock, pylock.toml, pyproject.toml, requirements.txt and environment.yml
    whose requirements can be read, and mentions the others in comments. Prints what it wrote, what
    it could not tell, for which profiles the project cannot be locked, and what to run next. A file
    that exists is never overwritten.

    \b
    Examples:
      envbuilder init
      envbuilder init --json
    """
    folder = Path.cwd()
    path = folder / settings.PROJECT_FILE
    if os.path.lexists(path):
        raise InvalidError(
            f"{path}: exists already",
            "Add packages to it: envbuilder add NAME. To start again, move it away first.",
        )
    written = _write(folder, path)
    if as_json:
        console.data(written)
    else:
        _print(written)


def _write(folder: Path, path: Path) -> Written:
    chosen, unread = _readable(folder, first_file.sources(folder))
    text = first_file.first_text(chosen, others := first_file.others(folder, chosen))
    definition = settings.decoded(text, path)[1]
    assert definition is not None, "the text lists requirements"
    notes, impossible = _tried(definition, folder)
    if chosen is None:
        unread = [*environments.unread(folder)]
        notes = (*notes, ": ".join(filter(None, (_NOTHING, ", ".join(others[:5])))))
    save(path, text.encode(), InvalidError, "Check that the folder is yours.")
    script = process.quoted(first_file.program_arguments(folder)) or "…"
    return Written(
        file=str(path),
        text=text,
        unread=tuple(unread),
        notes=notes,
        impossible=impossible,
        next=("envbuilder lock", f"envbuilder run -- python {script}"),
    )


def _readable(
    folder: Path, sources: Sequence[first_file.Source]
) -> tuple[first_file.Source | None, list[str]]:
    """Return the first file that can be read, and why others before it cannot.

    Raises `InvalidError` if there are files, and none can be.
    """
    errors: list[InvalidError] = []
    for source in sources:
        main = source.main
        try:
            environments.read(folder, main.file, main.extras, main.groups)
        except InvalidError as error:
            errors.append(error)
        else:
            return source, [error.message for error in errors]
    if errors:
        hints = dict.fromkeys(error.hint for error in errors if error.hint)
        raise InvalidError("\n".join(error.message for error in errors), "\n".join(hints))
    return None, []


def _tried(definition: Definition, folder: Path) -> tuple[tuple[str, ...], tuple[Impossible, ...]]:
    """Return what of the project is left out, and which profiles it cannot be combined with."""
    folders = profile_files.search_path(folder, load_settings().config_dir)
    variants = ProjectProfiles(definition, DEFAULT, folder, folders)
    try:
        framework, _ = variants.framework
    except InvalidError as error:
        return variants.contents.notes, (Impossible("any profile", error.message, error.hint),)
    impossible = []
    for name in profile_files.names(folders):
        profile = profile_files.load(name, folders)
        if profile.opt_in or profile.framework != framework:
            continue
        try:
            variants.of(profile)
        except InvalidError as error:
            impossible.append(Impossible(name, error.message, error.hint))
    return variants.contents.notes, tuple(impossible)


def _print(written: Written) -> None:
    console.result(f"wrote {written.file}:")
    for line in written.text.splitlines():
        console.result(f"  {line}")
    if written.unread:
        console.result("Could not be read, and is left out:")
    for message in written.unread:
        console.result(f"  {message}")
    for note in written.notes:
        console.result(note)
    reasons: dict[str, list[str]] = {}
    for each in written.impossible:
        reasons.setdefault(each.reason, []).append(each.profile)
    for reason, names in reasons.items():
        console.result(f"Not for {', '.join(names)}: {reason}")
    for hint in dict.fromkeys(each.hint for each in written.impossible):
        console.result(hint)
    console.result("Next:")
    for line in written.next:
        console.result(f"  {line}")
