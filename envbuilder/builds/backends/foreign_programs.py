"""Refuse programs on PATH that look like the environment's own but belong to another Python.

An environment contains only the packages in its lock, which does not include pip. If a user ran
pip, the shell would find another installation of pip further down PATH. That pip would change
another environment and report success. Programs are recognized by name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path, PurePath

from envbuilder.core import console, resources
from envbuilder.core.errors import RUN_FAILED, Hint, ToolError

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?w?")
_INSTALLER = re.compile(
    r"pip[0-9.]*|pip-(?:sync|install)|easy_install[-0-9.]*|pipx|pipenv|poetry|pdm|hatch|rye"
    r"|uvx?|uvw|conda|mamba|micromamba|pixi"
)
_CHANGES = frozenset(
    {"install", "uninstall", "sync", "add", "remove", "update", "upgrade", "create", "develop"}
)
"""Installer subcommands that change an environment."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\],-]*([<>=!~]|\Z)")
_STARTER = re.compile(rb"(?:#!|'''exec' \"?)\s*(/[^\n\"]*?/((?:python|pypy)[0-9.]*t?))[\s\"]")
"""Matches the line in which a Python script names its interpreter, as written by pip and other
tools."""
_HEAD_BYTES = 1024
_BY_HAND = "Changes made by hand would be lost and fail verification."
REFUSED = (
    "pip",
    "pip3",
    "uv",
    "uvx",
    "conda",
    "mamba",
    "micromamba",
    "pixi",
    "pipenv",
    "poetry",
    "jupyter",
    "jupyter-lab",
    "jupyter-notebook",
    "ipython",
    "torchrun",
    "accelerate",
)
"""Programs that shells, scripts and Makefiles call by name. An environment that lacks such a
program contains a stub that reports this, so that the shell does not run another installation found
on PATH."""
FOLDER = f"{resources.OWN}/refused"
"""Path of the folder that contains the stubs, relative to the prefix."""


def require_own(
    argv: Sequence[str], path: str | None, folders: Collection[Path], profile: str
) -> None:
    """Raise `ToolError` if a command would run in another Python or change the environment.

    `path` is the program found for the command, or None if no program was found. `folders` contain
    the environment's programs. A program that the user calls by its path is allowed, unless it is
    one of the environment's own programs and would change the environment.
    """
    if path and Path(path).absolute().parent in folders:
        if command := changing_command(argv):
            raise ToolError(f"{command} would change this environment", advice(profile))
        return
    name = argv[0]
    if "/" in name:
        return
    names = {name, Path(path).resolve().name} if path else {name}
    missing = f"{name} is not in this environment" + (
        f": the one on PATH is {path}" if path else ""
    )
    anyway = f"To run it anyway, give its path: {path}"
    if any(map(_INSTALLER.fullmatch, names)):
        raise ToolError(missing, advice(profile))
    if path and any(map(_PYTHON.fullmatch, names)):
        raise ToolError(
            f"{missing}, which is another Python",
            "The environment's interpreter is called python. To change its version, set python:"
            f" in envbuilder.yaml. {anyway}",
        )
    if path and (other := _interpreter(Path(path))) and other.parent not in folders:
        raise ToolError(
            f"{missing}: it is a script that runs another Python, {other}",
            f"{advice(profile)}\n{anyway}",
        )
    if name in REFUSED:
        raise ToolError(missing, [*advice(profile), *([Hint(anyway)] if path else [])])


def _interpreter(path: Path) -> Path | None:
    """Return the interpreter that a Python script specifies in its first lines, or None."""
    try:
        with path.open("rb") as stream:
            match = _STARTER.match(stream.read(_HEAD_BYTES).removeprefix(b"#!/bin/sh\n"))
    except OSError:
        return None
    return Path(os.fsdecode(match[1])) if match else None


def require_unchanged(argv: Sequence[str], profile: str, *, of_project: bool) -> None:
    """Raise `ToolError` if a command is an installer that would change the environment.

    Call this before building the environment. An installer that is called by its path may run,
    because it may belong to another environment.
    """
    command = "" if "/" in argv[0] else changing_command(argv)
    if not command:
        return
    verb = command.split()[1]
    names = argv[[*argv].index(verb) + 1 :]
    packages = names if names and all(map(_REQUIREMENT.match, names)) else ["NAME"]
    instead = "remove" if verb in {"remove", "uninstall"} else "add"
    of_packages = Hint(f"{_BY_HAND} To change the project's packages", (instead, *packages))
    raise ToolError(
        f"{command} would change the environment", [of_packages] if of_project else advice(profile)
    )


def require_lasting(argv: Sequence[str], distributions: Collection[str], profile: str) -> None:
    """Raise `ToolError` for an installer in a container, because its changes would be lost.

    `distributions` are the names of the packages in the image's lock. An installer among them is
    refused only if it would change something.
    """
    name = argv[0]
    if command := changing_command(argv):
        raise ToolError(
            f"the result of {command} would be lost when the container ends", advice(profile)
        )
    if _INSTALLER.fullmatch(name) and re.sub(r"[0-9.]+$", "", name) not in distributions:
        raise ToolError(f"{name} is not in this environment", advice(profile))


def changing_command(argv: Sequence[str]) -> str:
    """Return the part of a command that would change an environment, such as `pip install`.

    Return an empty string if the command would not change one.
    """
    name = PurePath(argv[0]).name
    arguments = list(argv[1:])
    if _PYTHON.fullmatch(name):
        name, *arguments = _module(arguments)
    if not _INSTALLER.fullmatch(name):
        return ""
    words = [a for a in arguments if not a.startswith("-")]
    # `uv pip install` and `conda env create` have two words, and options may have values.
    verb = next((word for word in words[:3] if word in _CHANGES), "")
    return f"{name} {verb}" if verb else ""


def _module(arguments: Sequence[str]) -> list[str]:
    """Return the module that an interpreter would run (`-m`), followed by the module's arguments.

    If there is no such option, return a list that contains only an empty string.
    """
    rest = iter(arguments)
    for option in rest:
        if option in {"-X", "-W"}:
            next(rest, None)
        elif option.startswith("-m"):
            return [option[2:] or next(rest, ""), *rest]
        elif option == "-c" or not option.startswith("-"):
            break
    return [""]


def advice(profile: str) -> list[Hint]:
    """Return hints on how to add packages to an environment of this profile."""
    shipped = (resources.profiles_dir() / f"{profile}.yaml").is_file()
    project_hint = (
        f"add_requirements: in profiles/mine.yaml, a profile of yours that extends {profile},"
        if shipped
        else f"add_requirements: (or requirements:) in profiles/{profile}.yaml,"
    )
    then = ("lock", "--profile", "mine" if shipped else profile)
    return [
        Hint(f"{_BY_HAND} To add packages to a project", ("add", "NAME")),
        Hint(f"Without a project, add them to {project_hint} then lock", then),
    ]


def stub(profile: str) -> str:
    """Return a shell script that reports that a program is not in this environment, and fails."""
    lines: list[str] = []
    for hint in advice(profile):
        lines += console.hint_lines(hint)
    text = "\n".join(lines)
    return (
        "#!/bin/sh\n"
        """printf 'error: %s is not in this environment\\n%s\\n' "${0##*/}" \\\n"""
        f"    {shlex.quote(text)} >&2\n"
        f"exit {RUN_FAILED}\n"
    )
