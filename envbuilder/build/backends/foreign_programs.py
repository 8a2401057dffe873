"""Detect programs on PATH that look like the environment's but belong to another Python.

An environment contains what its lock names, and no pip. `pip install` would be found further down
on PATH, change another environment, and report success. A program is judged by its name, location
and first bytes, which `look` reads; `judge`, `change` and `refusal` are pure.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core import resources
from envbuilder.core.errors import RUN_FAILED, ToolError
from envbuilder.core.resources import OWN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_HEAD_BYTES = 4096
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?w?")
_INSTALLER = re.compile(
    r"pip[0-9.]*|pip-(?:sync|install)|easy_install[-0-9.]*|pipx|pipenv|poetry|pdm|hatch|rye"
    r"|uvx?|uvw|conda|mamba|micromamba|pixi"
)
_CHANGES = frozenset(
    {"install", "uninstall", "sync", "add", "remove", "update", "upgrade", "create", "develop"}
)
"""Commands of installers that write."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\],-]*([<>=!~]|\Z)")
_BY_HAND = "Changes made by hand would be lost and fail verification."
REFUSED = (
    *("pip", "pip3", "uv", "uvx", "conda", "mamba", "micromamba", "pixi", "pipenv", "poetry"),
    *("jupyter", "jupyter-lab", "jupyter-notebook", "ipython", "torchrun", "accelerate"),
)
"""Programs that shells, scripts and Makefiles call by name. An environment without such a program
gets a stub that reports this, so that the next one on PATH is not run."""
FOLDER = f"{OWN}/refused"
"""The folder of the stubs, below the prefix."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
# How a wrapper script starts Python: exec and the interpreter's path, perhaps computed from the
# script's own path. Quotes have been removed already.
_EXEC = re.compile(
    r"^[ \t]*exec[ \t]+(?:-a[ \t]+\S+[ \t]+|-\S+[ \t]+)*"
    r"(?P<folder>\$\([^|;&\n]*?\)+/|[^\s$]*/|\$\{?\w+\}?/)?(?P<name>(?:python|pypy)[0-9.]*t?)(?=\s|$)",
    re.MULTILINE,
)
_QUOTED = re.compile(r"exec['\"]*[ \t]+\"(/[^\"$\n]*/(?:python|pypy)[0-9.]*t?)\"")
"""The same with a quoted path, which may contain spaces."""
_SHIM = re.compile(r"^[ \t]*exec[ \t]+(?:\S*/)?(?P<name>pyenv|asdf)[ \t]+exec\b", re.MULTILINE)


class Program(Struct, frozen=True, kw_only=True):
    """A program named in a command, and what is known about it."""

    name: str
    """As written in the command."""
    path: str
    """Where it was found; empty if it was not."""
    target: str
    """The file there, with all links resolved."""
    head: bytes
    """The first bytes of that file."""


class Place(Struct, frozen=True, kw_only=True):
    """An environment in which a command is looked up."""

    folders: tuple[str, ...]
    """The folders of its programs."""
    programs: frozenset[str]
    """The names of its programs."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What a program is, relative to an environment."""

    kind: Literal["own", "ordinary", "interpreter", "tool", "installer"]
    runs: str = ""
    """The other Python that a tool runs."""


def judge(program: Program, place: Place) -> Verdict:
    """Classify a program: the environment's own, an ordinary one, or one of another Python."""
    name = _name(program.name)
    if program.path and _folder(program.path) in place.folders:
        return Verdict(kind="own")
    if _INSTALLER.fullmatch(name) or _INSTALLER.fullmatch(_name(program.target)):
        return Verdict(kind="installer")
    if _PYTHON.fullmatch(_name(program.target)) or _PYTHON.fullmatch(name):
        return Verdict(kind="interpreter")
    runs = _runs(program, place)
    return Verdict(kind="tool", runs=runs) if runs else Verdict(kind="ordinary")


def _runs(program: Program, place: Place) -> str:
    """Return the Python outside the environment that a script runs; empty if it runs none."""
    if not program.head.startswith(b"#!"):
        return ""
    line, _, rest = program.head[2:].decode("utf-8", "replace").partition("\n")
    interpreter, *arguments = line.split() or [""]
    if _name(interpreter) == "env":
        named = (a.removeprefix("-S") for a in arguments if "=" not in a)
        interpreter = next((a for a in named if a and not a.startswith("-")), "")
    if _name(interpreter) in _SHELLS:
        return _started(rest, program, place)
    return interpreter if _is_foreign(interpreter, place) else ""


def _started(script: str, program: Program, place: Place) -> str:
    """Return the same for a shell script, which may be a wrapper that starts Python."""
    quoted = _QUOTED.search(script)
    if quoted and _is_foreign(quoted[1], place):
        return quoted[1]
    text = re.sub(r"['\"]", "", script)
    match = _EXEC.search(text)
    if match:
        folder = match["folder"] or ""
        if "$" in folder:  # next to the script, which is not in the environment
            folder = f"{_folder(program.target)}/"
        interpreter = f"{folder}{match['name']}"
        return interpreter if _is_foreign(interpreter, place) else ""
    shim = _SHIM.search(text)
    others = shim and shim["name"] == "asdf" and "asdf-plugin: python" not in script
    return shim["name"] if shim and not others else ""


def _is_foreign(interpreter: str, place: Place) -> bool:
    """Return whether this is a Python other than the environment's."""
    folder, name = _folder(interpreter), _name(interpreter)
    if not _PYTHON.fullmatch(name):
        return False
    return folder not in place.folders if folder else name not in place.programs


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def change(argv: Sequence[str]) -> str:
    """Return the installer command that would change an environment (`pip install`), or empty."""
    name, arguments = _name(argv[0]), list(argv[1:])
    if _PYTHON.fullmatch(name):
        name, *arguments = _module(arguments)
    if not _INSTALLER.fullmatch(name):
        return ""
    words = [a for a in arguments if not a.startswith("-")]
    # `uv pip install` and `conda env create` have two words, and options may have values.
    verb = next((word for word in words[:3] if word in _CHANGES), "")
    return f"{name} {verb}" if verb else ""


def _module(arguments: Sequence[str]) -> list[str]:
    """Return the module that an interpreter is to run (`-m`), and its arguments."""
    rest = iter(arguments)
    for option in rest:
        if option in {"-X", "-W"}:
            next(rest, None)
        elif option.startswith("-m"):
            return [option[2:] or next(rest, ""), *rest]
        elif option == "-c" or not option.startswith("-"):
            break
    return [""]


def remedy(profile: str, *, shipped: bool) -> str:
    """Return how to add packages to an environment instead."""
    where = (
        f"add_requirements: in profiles/mine.yaml, a profile of yours that extends {profile},"
        if shipped
        else f"add_requirements: (or requirements:) in profiles/{profile}.yaml,"
    )
    return (
        f"{_BY_HAND} Add packages to a project: envbuilder add NAME. Without one, add them to"
        f" {where} then: envbuilder lock --profile {'mine' if shipped else profile}"
    )


def advice(profile: str) -> str:
    """Return how to add packages to an environment of this profile."""
    return remedy(profile, shipped=(resources.profiles_dir() / f"{profile}.yaml").is_file())


def script(profile: str) -> str:
    """Return a stub that reports that a program is not in this environment, and fails."""
    return (
        "#!/bin/sh\n"
        """printf 'error: %s is not in this environment\\n%s\\n' "${0##*/}" \\\n"""
        f"    {shlex.quote(advice(profile))} >&2\n"
        f"exit {RUN_FAILED}\n"
    )


def in_image(argv: Sequence[str], distributions: Collection[str], profile: str) -> None:
    """Raise `ToolError` for an installer in an image, whose changes end with the container.

    `distributions` are those of the image's lock; an installer among them is refused only if it
    would change something.
    """
    name = argv[0]
    if changes := change(argv):
        raise ToolError(f"{changes} would be lost when the container ends", advice(profile))
    if _INSTALLER.fullmatch(name) and re.sub(r"[0-9.]+$", "", name) not in distributions:
        raise ToolError(f"{name} is not in this environment", advice(profile))


def require_unchanged(argv: Sequence[str], profile: str, *, of_project: bool) -> None:
    """Raise `ToolError` for an installer that would change an environment, before that is built.

    One that is named by its path may be another environment's.
    """
    changes = "" if "/" in argv[0] else change(argv)
    if not changes:
        return
    verb = changes.split()[1]
    names = argv[[*argv].index(verb) + 1 :]
    packages = shlex.join(names) if names and all(map(_REQUIREMENT.match, names)) else "NAME"
    command = f"envbuilder {'remove' if verb in {'remove', 'uninstall'} else 'add'} {packages}"
    hint = f"{_BY_HAND} The project's packages: {command}" if of_project else advice(profile)
    raise ToolError(f"{changes} would change the environment", hint)


def refusal(program: Program, argv: Sequence[str], place: Place, how: str) -> ToolError | None:
    """Return the error for a command that must not run, or None. `how`: how to add packages.

    A program named by its path may run, unless it is the environment's own and would change it.
    """
    changes, verdict = change(argv), judge(program, place)
    if verdict.kind == "own":
        return ToolError(f"{changes} would change this environment", how) if changes else None
    if "/" in program.name:
        return None
    name, at = program.name, f": the one on PATH is {program.path}" if program.path else ""
    as_it_is = f"To run it anyway, give its path: {program.path}"
    match verdict.kind:
        case "installer":
            return ToolError(f"{name} is not in this environment{at}", how)
        case "interpreter" if program.path:
            return ToolError(
                f"{name} is not in this environment{at}, another Python",
                f"The environment's own is called python; --python-version X.Y chooses another"
                f" version. {as_it_is}",
            )
        case "tool":
            return ToolError(
                f"{name} is not in this environment{at}, which runs {verdict.runs}",
                f"{how}\n{as_it_is}",
            )
    return None


def require_own(
    argv: Sequence[str], path: str | None, prefix: Path, folders: Collection[str], profile: str
) -> None:
    """Raise `ToolError` if a command would run in another Python or change the environment.

    `path` is where its program was found; `folders` are those of the environment below `prefix`.
    """
    paths = tuple(str(prefix / folder) for folder in folders)
    program = look(argv[0], path)
    place = Place(
        folders=paths,
        programs=frozenset(name for path in paths for name in _listed(path)),
    )
    refused = refusal(program, argv, place, advice(profile))
    if refused is not None:
        raise refused


def _listed(folder: str) -> list[str]:
    try:
        return [path.name for path in Path(folder).iterdir()]
    except OSError:
        return []


def look(name: str, path: str | None) -> Program:
    """Read what is needed to judge a program; an unreadable one is judged by its name."""
    if path is None:
        return Program(name=name, path="", target="", head=b"")
    head = b""
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    return Program(
        name=name, path=str(Path(path).absolute()), target=os.path.realpath(path), head=head
    )
