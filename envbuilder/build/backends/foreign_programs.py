"""Programs on PATH that look like the environment's but belong to another Python.

An environment holds what its lock names, and no pip. `pip install` would be found further down on
PATH, change another environment, and report success. Whether a program is such a one is decided
from its name, its place and its first bytes; everything but `look` is pure.
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
"""Commands of installers that write somewhere."""
REFUSED = (
    *("pip", "pip3", "uv", "uvx", "conda", "mamba", "micromamba", "pixi", "pipenv", "poetry"),
    *("jupyter", "jupyter-lab", "jupyter-notebook", "ipython", "torchrun", "accelerate"),
)
"""What shells, scripts and Makefiles call by name. Where an environment has no such program, it has
one that says so instead of the next on PATH."""
FOLDER = f"{OWN}/refused"
"""Below a prefix: those programs."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
# What a script begins with that only starts Python: exec, and the interpreter's path, which may be
# worked out from the script's own. Quotes are gone already.
_EXEC = re.compile(
    r"^[ \t]*exec[ \t]+(?:-a[ \t]+\S+[ \t]+|-\S+[ \t]+)*"
    r"(?P<folder>\$\([^|;&\n]*?\)+/|[^\s$]*/|\$\{?\w+\}?/)?(?P<name>(?:python|pypy)[0-9.]*t?)(?=\s|$)",
    re.MULTILINE,
)
_QUOTED = re.compile(r"exec['\"]*[ \t]+\"(/[^\"$\n]*/(?:python|pypy)[0-9.]*t?)\"")
"""The same with a path that holds blanks."""
_SHIM = re.compile(r"^[ \t]*exec[ \t]+(?:\S*/)?(?P<name>pyenv|asdf)[ \t]+exec\b", re.MULTILINE)


class Program(Struct, frozen=True, kw_only=True):
    """A program that a command names, and what is known of it."""

    name: str
    """As the command names it."""
    path: str
    """Where it was found; empty where it is nowhere."""
    target: str
    """The file there, after all links."""
    head: bytes
    """The first bytes of that file."""


class Place(Struct, frozen=True, kw_only=True):
    """An environment, as a command is looked for in it."""

    folders: tuple[str, ...]
    """Where its programs are."""
    programs: frozenset[str]
    """Their names."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What a program is, seen from an environment."""

    kind: Literal["own", "ordinary", "interpreter", "tool", "installer"]
    runs: str = ""
    """The other Python that a tool runs."""


def judge(program: Program, place: Place) -> Verdict:
    """What a program is: the environment's own, an ordinary one, or one of another Python."""
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
    """The Python outside of the environment that a script runs; empty where it runs none."""
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
    """The same for a shell script, which may do nothing but start Python."""
    quoted = _QUOTED.search(script)
    if quoted and _is_foreign(quoted[1], place):
        return quoted[1]
    text = re.sub(r"['\"]", "", script)
    found = _EXEC.search(text)
    if found:
        folder = found["folder"] or ""
        if "$" in folder:  # beside the script, which is not in the environment
            folder = f"{_folder(program.target)}/"
        interpreter = f"{folder}{found['name']}"
        return interpreter if _is_foreign(interpreter, place) else ""
    shim = _SHIM.search(text)
    others = shim and shim["name"] == "asdf" and "asdf-plugin: python" not in script
    return shim["name"] if shim and not others else ""


def _is_foreign(interpreter: str, place: Place) -> bool:
    """Whether this is a Python, and not the environment's."""
    folder, name = _folder(interpreter), _name(interpreter)
    if not _PYTHON.fullmatch(name):
        return False
    return folder not in place.folders if folder else name not in place.programs


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def change(argv: Sequence[str]) -> str:
    """The command of an installer that would change an environment (`pip install`), else empty."""
    name, arguments = _name(argv[0]), list(argv[1:])
    if _PYTHON.fullmatch(name):
        name, *arguments = _module(arguments)
    if not _INSTALLER.fullmatch(name):
        return ""
    words = [a for a in arguments if not a.startswith("-")]
    # `uv pip install` and `conda env create` take two words, and options may have values.
    verb = next((word for word in words[:3] if word in _CHANGES), "")
    return f"{name} {verb}" if verb else ""


def _module(arguments: Sequence[str]) -> list[str]:
    """The module that an interpreter is asked to run (`-m`), and its arguments."""
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
    """How packages get into an environment instead."""
    where = (
        f"add_requirements: in profiles/mine.yaml, a profile of yours that extends {profile},"
        if shipped
        else f"add_requirements: (or requirements:) in profiles/{profile}.yaml,"
    )
    return (
        "Changes made by hand would be lost and fail verification. Add packages to"
        f" {where} then: envbuilder lock --profile {'mine' if shipped else profile}"
    )


def advice(profile: str) -> str:
    """How packages get into an environment of this profile."""
    return remedy(profile, shipped=(resources.profiles_dir() / f"{profile}.yaml").is_file())


def script(profile: str) -> str:
    """A program that refuses to be another environment's."""
    return (
        "#!/bin/sh\n"
        """printf 'error: %s is not in this environment\\n%s\\n' "${0##*/}" \\\n"""
        f"    {shlex.quote(advice(profile))} >&2\n"
        f"exit {RUN_FAILED}\n"
    )


def in_image(argv: Sequence[str], distributions: Collection[str], profile: str) -> None:
    """`ToolError` for an installer in an image, which keeps nothing when its container ends.

    `distributions` are those of the image's lock; what they bring is only refused where it would
    change something.
    """
    name = argv[0]
    if changes := change(argv):
        raise ToolError(f"{changes} would be lost when the container ends", advice(profile))
    if _INSTALLER.fullmatch(name) and re.sub(r"[0-9.]+$", "", name) not in distributions:
        raise ToolError(f"{name} is not in this environment", advice(profile))


def refusal(program: Program, argv: Sequence[str], place: Place, how: str) -> ToolError | None:
    """Why a command must not run; None where it may. `how` says how packages are added.

    A program that is named by its path is meant, unless it would change the environment.
    """
    changes, verdict = change(argv), judge(program, place)
    if verdict.kind == "own":
        return ToolError(f"{changes} would change this environment", how) if changes else None
    if "/" in program.name:
        return None
    name, at = program.name, f": on PATH there is {program.path}" if program.path else ""
    as_it_is = f"To run it all the same, name its path: {program.path}"
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
    """`ToolError` for a command that would run in another Python, or change the environment.

    `path` is where its program was found, `folders` are those of the environment below `prefix`.
    """
    places = tuple(str(prefix / folder) for folder in folders)
    program = look(argv[0], path)
    place = Place(
        folders=places,
        programs=frozenset(name for one in places for name in _listed(one)),
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
    """Read what decides about a program; one that cannot be read is judged by its name."""
    if path is None:
        return Program(name=name, path="", target="", head=b"")
    head = b""
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    return Program(
        name=name, path=str(Path(path).absolute()), target=os.path.realpath(path), head=head
    )
