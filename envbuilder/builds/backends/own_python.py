"""Interpreters that native environments own: a locked archive, and how a venv finds what is in it.

An interpreter is unpacked beside the venv that is made of it, and then becomes a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.builds.plan import Move, Step, UnpackPython
from envbuilder.core.resources import OWN
from envbuilder.packages import interpreters
from envbuilder.packages.conda.lock import Rehome

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.builds.request import Locked
    from envbuilder.profiles.lock import File

_FOLDER = "python"


def unpack_steps(interpreter: File, work: Path) -> tuple[Step, ...]:
    """Return the step that unpacks an interpreter in a build's working folder."""
    what = f"unpack Python {interpreter.version}"
    return (UnpackPython(what=what, file=interpreter, folder=str(work / _FOLDER)),)


def program(work: Path, python: str) -> str:
    """Return the path of that interpreter while the environment is made."""
    return str(work / _FOLDER / interpreters.program(python))


def home_steps(
    build: Locked, interpreter: File, *, work: Path, env: Path, prefix: Path
) -> tuple[Step, ...]:
    """Return the steps that put that interpreter into the environment that was made of it.

    `env` is moved to `prefix` at the end.
    """
    folder = f"{OWN}/{_FOLDER}"
    path = prefix / folder / interpreters.program(interpreter.version.rpartition(".")[0])
    return (
        Move(what="add its interpreter", source=str(work / _FOLDER), target=str(env / folder)),
        rehomed(
            build,
            env,
            home=path.parent,
            # Python 3.10 and older take their own path from the link, with any `..` in it.
            python=str(path),
            version=interpreter.version,
        ),
    )


def rehomed(
    build: Locked, env: Path, *, home: Path, python: str, version: str, system_site: bool = False
) -> Rehome:
    """Return the step that points a venv to its interpreter, in the folder `home` at last.

    `python` is that interpreter as the link in the venv leads to it.
    """
    return Rehome(
        what="point it to its interpreter",
        env=str(env),
        settings={
            "home": str(home),
            "implementation": "CPython",
            "uv": build.profile.tools.uv,
            "version_info": version,
            "include-system-site-packages": str(system_site).lower(),
            "relocatable": "true",
            "prompt": build.profile.name,
        },
        python=python,
    )
