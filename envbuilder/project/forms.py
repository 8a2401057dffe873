"""The forms of files that requirements are read from: a new one is a row of `FORMS`.

Imported only when there is a file to read, since all readers come with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from envbuilder.project.conda import read_conda_list, read_environment_yml, read_pixi
from envbuilder.project.foreign_locks import read_pipfile, read_pylock, read_uv_lock
from envbuilder.project.lines import Listed, read_text
from envbuilder.project.requirements_txt import read_cog, read_requirements_txt
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
    Form(pattern=r"(?i:.*(req|dependenc|environment).*)\.(txt|in)|pip\.txt", read=_read_text_list),
    Form(pattern=r".+\.(txt|in)", read=_read_text_list, is_usual=False),
    Form(pattern=r".+\.ya?ml", read=read_environment_yml, is_usual=False),
)
"""All forms, the best to take requirements from first."""
SUPPORTED = ", ".join(form.names for form in FORMS if form.names)


def form_of(name: str) -> Form | None:
    """Return the form of a file with this name; None if requirements are not read from it."""
    return next((form for form in FORMS if re.fullmatch(form.pattern, name)), None)
