"""Read files that list requirements. Each kind of file is a row in `FORMS`.

Import this module only when a file is to be read, since it imports all readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.errors import InvalidError, escaped
from envbuilder.project import package
from envbuilder.project.conda import read_conda_list, read_environment_yml, read_pixi
from envbuilder.project.foreign_locks import read_pipfile, read_pylock, read_uv_lock
from envbuilder.project.lines import Dropped, Listed, Needed, joined, read_text, recorded
from envbuilder.project.requirements_txt import read_cog, read_requirements_txt
from envbuilder.project.scripts import read_script
from envbuilder.project.setup_files import read_project, read_setup


class Form(Struct, frozen=True, kw_only=True):
    """A kind of file that lists requirements."""

    pattern: str
    """Regular expression for file names. If several forms match a name, the first form is used."""
    read: Callable[..., Listed]
    """The function that reads a file of this form.

    If the form has extras, the function also receives the chosen extras and groups.
    """
    names: str = ""
    """The file names as shown in messages and documentation."""
    has_extras: bool = False
    """Whether files of this form have extras or dependency groups."""
    keeps_versions: bool = False
    """Whether such files are locks, which are preferred to the files they were made from."""
    is_usual: bool = True
    """Whether the file name alone shows that the file lists requirements."""


def _read_text_list(project: Path, file: str) -> Listed:
    """Read a .txt file in the format of pip or of `conda list --export`."""
    is_condas = _OF_CONDA.search(read_text(project, file))
    return (read_conda_list if is_condas else read_requirements_txt)(project, file)


_OF_CONDA = re.compile(r"^# platform: |^[A-Za-z0-9_.-]+=[^=\s]+=[A-Za-z0-9_.]+\s*$", re.MULTILINE)
"""Pattern of lines that `conda list --export` writes but that pip never writes."""
FORMS = (
    Form(
        names="uv.lock",
        pattern=r"uv\.lock",
        read=read_uv_lock,
        has_extras=True,
        keeps_versions=True,
    ),
    Form(
        names="pylock.toml",
        pattern=r"pylock(\.[^.]+)?\.toml",
        read=read_pylock,
        has_extras=True,
        keeps_versions=True,
    ),
    Form(names="requirements.txt", pattern=r"requirements\.txt", read=_read_text_list),
    Form(names="pyproject.toml", pattern=r"pyproject\.toml", read=read_project, has_extras=True),
    Form(names="environment.yml", pattern=r"environment\.ya?ml", read=read_environment_yml),
    Form(
        pattern=r"(conda[-_.]?)?env(ironment)?\.ya?ml|conda\.ya?ml",
        read=read_environment_yml,
    ),
    Form(
        names="Pipfile, Pipfile.lock",
        pattern=r"Pipfile(\.lock)?",
        read=read_pipfile,
        has_extras=True,
    ),
    Form(names="pixi.toml", pattern=r"pixi\.toml", read=read_pixi, has_extras=True),
    Form(names="cog.yaml", pattern=r"cog\.ya?ml", read=read_cog),
    Form(
        names="setup.py, setup.cfg",
        pattern=r"setup\.(py|cfg)",
        read=read_setup,
        has_extras=True,
    ),
    Form(
        names="a script's own list (PEP 723)",
        pattern=r".+\.py",
        read=read_script,
        is_usual=False,
    ),
    Form(pattern=r"(?i:.*(req|dependenc|environment).*)\.(txt|in)|pip\.txt", read=_read_text_list),
    Form(pattern=r".+\.(txt|in)", read=_read_text_list, is_usual=False),
    Form(pattern=r".+\.ya?ml", read=read_environment_yml, is_usual=False),
)
"""All kinds of files that are supported, the most preferred first."""


def supported() -> str:
    """Return the names of all supported files, for use in messages and help texts."""
    return ", ".join(form.names for form in FORMS if form.names)


def form_of(name: str) -> Form | None:
    """Return the form of files with this name, or None if such files are not supported."""
    return next((form for form in FORMS if re.fullmatch(form.pattern, name)), None)


# Reading a file

_INSTEAD = {
    "poetry.lock": "List pyproject.toml, or the result of: poetry export -o requirements.txt",
    "pdm.lock": "List pyproject.toml, or the result of: pdm export -o requirements.txt",
    "pixi.lock": "List pixi.toml.",
}
LOCKS = ("poetry.lock", "pdm.lock")
"""Locks that other tools generate from pyproject.toml. Their versions are not read."""
OWN = ("pyproject.toml", "setup.py", "setup.cfg")
"""Files that may contain the project's own requirements. The first one that exists is used."""


def read(
    project: Path, file: str, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Listed:
    """Read the requirements in a file; `file` is its path relative to the project.

    The requirements of the `extras` and `groups` are added if this kind of file can have them. If
    the file installs the project itself, the project's own requirements are also included. Nothing
    outside the project is read. Raise `InvalidError` if the file is invalid or not supported.
    """
    with recorded() as files:
        requirements = _read(project, file, extras, groups)
        if requirements.itself is not None and PurePosixPath(file).name not in OWN:
            requirements = _with_own(project, requirements)
    requirements = replace(requirements, read_from=tuple(sorted(files)))
    if not (
        requirements.requirements
        or requirements.constraints
        or requirements.conda
        or requirements.notes
    ):
        return replace(
            requirements, notes=(Dropped(f"{escaped(file)}: the file lists no requirements."),)
        )
    return requirements


def _with_own(project: Path, requirements: Listed) -> Listed:
    """Return the requirements in a file, with the project's own requirements added.

    If the project's own requirements cannot be read, a note is added instead.
    """
    for name in OWN:
        if (project / name).is_file():
            try:
                more = _read(project, name, requirements.itself or (), ())
            except InvalidError as error:
                note = f"{error.message}, so the project's own requirements are left out."
                return replace(requirements, notes=(*requirements.notes, Needed(note)))
            more = Listed(
                requirements=more.requirements,
                pythons=more.pythons,
                notes=more.notes,
            )
            return joined([requirements, more])
    return requirements


def _read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    name = PurePosixPath(file).name
    form = form_of(name)
    if form is None:
        raise InvalidError(
            f"{escaped(file)}: envbuilder does not read requirements from this kind of file",
            _INSTEAD.get(name, f"Supported are {supported()}."),
        )
    if form.has_extras:
        return form.read(project, file, extras, groups)
    for kind, names in (("extras", extras), ("groups", groups)):
        if names:
            raise InvalidError(
                f"{escaped(file)}: this kind of file has no {kind}",
                f"Remove {kind}: {escaped(', '.join(names), 100)}.",
            )
    return form.read(project, file)


def unread(project: Path, names: Iterable[str] = (*OWN, *_INSTEAD)) -> Iterator[str]:
    """Yield a message for each top-level file that could provide requirements but is not used.

    The message says why the file is not used, or how to use it. By default, all known files are
    checked. For a project that already lists a file, pass only the names of locks.
    """
    for name in names:
        if (project / name).is_file():
            try:
                requirements = read(project, name)
            except InvalidError as error:
                yield f"{error.message}. {error.hint}"
            else:
                if requirements.requirements or requirements.conda:
                    yield f"{name} lists requirements. To use it, write requirements_from: [{name}]"


class InstallHints(NamedTuple):
    """Metadata that can be read from a package's source files without running its code."""

    name: str
    version: str
    """The version; empty if only the package's code can compute it."""
    requires: tuple[str, ...]


def shown(folder: Path) -> InstallHints | None:
    """Return the metadata in setup.py or similar files; None if the files cannot be read."""
    try:
        itself = package.read(folder)
        file = next(name for name in reversed(package.FILES) if (folder / name).is_file())
        lines = read(folder, file).requirements
    except InvalidError:
        return None
    version = itself.version if itself.version != package.UNKNOWN else ""
    return InstallHints(itself.name, version, tuple(line.text for line in lines))
