"""Read the files that list requirements, each by its form: a new form is a row of `FORMS`.

Imported only when there is a file to read, since all readers come with it.
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
    """A form of files that list requirements."""

    pattern: str
    """The names of its files. A name that several forms have is of the first one."""
    read: Callable[..., Listed]
    """Reads a file of a project, given both; of a form with extras, also what is chosen of them."""
    names: str = ""
    """Those that messages and documentation give."""
    has_extras: bool = False
    """Whether it has extras or groups."""
    keeps_versions: bool = False
    """Whether it is a lock, which comes before what it was made from."""
    is_usual: bool = True
    """Whether the name alone says that requirements are listed."""


def _read_text_list(project: Path, file: str) -> Listed:
    """Read a .txt, which pip or conda may have written."""
    is_condas = _OF_CONDA.search(read_text(project, file))
    return (read_conda_list if is_condas else read_requirements_txt)(project, file)


_OF_CONDA = re.compile(r"^# platform: |^[A-Za-z0-9_.-]+=[^=\s]+=[A-Za-z0-9_.]+\s*$", re.MULTILINE)
"""What `conda list --export` writes, and pip never does."""
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
"""All forms, the best to take requirements from first."""


def supported() -> str:
    """Return the names of files that requirements are read from, for messages and help."""
    return ", ".join(form.names for form in FORMS if form.names)


def form_of(name: str) -> Form | None:
    """Return the form of a file with this name; None if requirements are not read from it."""
    return next((form for form in FORMS if re.fullmatch(form.pattern, name)), None)


# Reading a file

_INSTEAD = {
    "poetry.lock": "List pyproject.toml, or the result of: poetry export -o requirements.txt",
    "pdm.lock": "List pyproject.toml, or the result of: pdm export -o requirements.txt",
    "pixi.lock": "List pixi.toml.",
}
LOCKS = ("poetry.lock", "pdm.lock")
"""Locks that are made from pyproject.toml, whose versions are not read."""
OWN = ("pyproject.toml", "setup.py", "setup.cfg")
"""The files that state what the project itself requires, the first of which counts."""


def read(
    project: Path, file: str, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Listed:
    """Return what a file of a project requires; `file` is its path in the project.

    `extras` and `groups` are added, for files that have any. If it installs the project itself,
    what that requires is among it. Nothing outside the project is read. Raises `InvalidError`.
    """
    with recorded() as files:
        listed = _read(project, file, extras, groups)
        if listed.itself is not None and PurePosixPath(file).name not in OWN:
            listed = _with_own(project, listed)
    listed = replace(listed, read_from=tuple(sorted(files)))
    if not (listed.requirements or listed.constraints or listed.conda or listed.notes):
        return replace(listed, notes=(Dropped(f"{escaped(file)}: it lists no requirements."),))
    return listed


def _with_own(project: Path, listed: Listed) -> Listed:
    """Return what a file lists, with what the project itself requires."""
    for name in OWN:
        if (project / name).is_file():
            try:
                more = _read(project, name, listed.itself or (), ())
            except InvalidError as error:
                note = f"{error.message}, so what the project itself requires is left out."
                return replace(listed, notes=(*listed.notes, Needed(note)))
            more = Listed(
                requirements=more.requirements,
                pythons=more.pythons,
                notes=more.notes,
            )
            return joined([listed, more])
    return listed


def _read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    name = PurePosixPath(file).name
    form = form_of(name)
    if form is None:
        raise InvalidError(
            f"{escaped(file)}: not a kind of file that requirements are read from",
            _INSTEAD.get(name, f"Supported are {supported()}."),
        )
    if form.has_extras:
        return form.read(project, file, extras, groups)
    for kind, names in (("extras", extras), ("groups", groups)):
        if names:
            raise InvalidError(
                f"{escaped(file)}: a file of this kind has no {kind}",
                f"Remove {kind}: {escaped(', '.join(names), 100)}.",
            )
    return form.read(project, file)


def unread(project: Path, names: Iterable[str] = (*OWN, *_INSTEAD)) -> Iterator[str]:
    """Yield why nothing is read from files at the top that may list requirements, and what to do.

    All are for a project that requires nothing: of one that lists a file, locks alone matter.
    """
    for name in names:
        if (project / name).is_file():
            try:
                listed = read(project, name)
            except InvalidError as error:
                yield f"{error.message}. {error.hint}"
            else:
                if listed.requirements or listed.conda:
                    yield f"{name} lists requirements. Name it: requirements_from: [{name}]"


class InstallHints(NamedTuple):
    """What a source shows of itself in its text."""

    name: str
    version: str
    """Empty if only its code knows it."""
    requires: tuple[str, ...]


def shown(folder: Path) -> InstallHints | None:
    """Return what setup.py or others show in their text; None if they cannot be read."""
    try:
        itself = package.read(folder)
        file = next(name for name in reversed(package.FILES) if (folder / name).is_file())
        lines = read(folder, file).requirements
    except InvalidError:
        return None
    version = itself.version if itself.version != package.UNKNOWN else ""
    return InstallHints(itself.name, version, tuple(line.text for line in lines))
