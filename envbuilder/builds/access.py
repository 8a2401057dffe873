"""The ports, volumes, folders and variables that a command gets in addition to its environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import conventions
from envbuilder.containers.engine.container import LOOPBACK, Port, Volume
from envbuilder.core import console, decoding, files, process, types
from envbuilder.core.errors import Hint, InvalidError, shown, with_context
from envbuilder.project import environments, package

if TYPE_CHECKING:
    from envbuilder.builds.plan import Plan
    from envbuilder.core.settings import Definition, Settings

Runner = Callable[[Sequence[str], Mapping[str, str]], int]
"""A function that runs a command and returns its exit code.

Its second argument contains the variables to set in addition to those of this process.
"""
_PORT = re.compile(
    r"((?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[0-9.]{7,15}):)?((?P<outside>[0-9]{1,5}):)?"
    r"(?P<inside>[0-9]{1,5})"
)
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FOLDER_STARTS = (".", "/", "~")
_CLOSED = (
    conventions.PREFIX,
    conventions.OWN,
    "/proc",
    "/sys",
    "/dev",
    "/etc",
    "/bin",
    "/lib",
    "/lib64",
    "/sbin",
    "/usr",
)
"""Folders of an image where no mount is allowed, neither over the folder nor inside it."""
_KEPT_WHOLE = ("/tmp", "/run", "/var", "/root", conventions.HOME)  # noqa: S108
"""Folders of an image that no mount may cover. A mount on a folder inside them is allowed."""
_ENVIRONMENTS_OWN = frozenset({"PATH", "VIRTUAL_ENV"})


class Access(Struct, frozen=True, kw_only=True):
    """Ports, volumes, folders and variables that a command gets in addition to its environment."""

    ports: tuple[Port, ...] = ()
    """Ports to publish. For images only, as a native command uses this machine's ports directly."""
    volumes: tuple[Volume, ...] = ()
    """Volumes to mount, for images only."""
    variables: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    """Names of the caller's variables to pass on. Their values never appear in an argument list."""
    python_path: tuple[PurePath, ...] = ()
    """Folders on this machine from which Python imports modules."""
    programs: tuple[PurePath, ...] = ()
    """Folders on this machine that contain the project's commands."""
    own_folders: tuple[Volume, ...] = ()
    """Volumes for folders outside the project that `python_path` and `programs` refer to.
    Containers mount them."""
    shares_cores: bool = False
    """Whether the startup hook, rather than a variable, sets the number of threads in each Python
    process."""
    is_read: bool = False
    """Whether this process reads the command's output.

    If so, the command gets no terminal, and envbuilder prints no notes about the command.
    """


NOTHING = Access()


def combined(project: Access, command: Access) -> Access:
    """Merge the project's access with that of one command. The command takes precedence."""
    inside = {port.inside for port in command.ports}
    addresses = {port.address for port in command.ports}
    targets = {volume.target for volume in command.volumes}
    ports = [p for p in project.ports if p.inside not in inside and p.address not in addresses]
    volumes = [v for v in project.volumes if v.target not in targets]
    return replace(
        project,
        ports=(*ports, *command.ports),
        volumes=(*volumes, *command.volumes),
        variables=command.variables,
        passed=command.passed,
    )


def require_distinct(access: Access) -> None:
    """Raise `InvalidError` if two entries use the same host port or the same container path."""
    seen = set()
    for item in [*(p.address for p in access.ports), *(v.target for v in access.volumes)]:
        if item in seen:
            raise InvalidError(f"{shown(item)} is given twice", "Remove one of them.")
        seen.add(item)


def port(text: str) -> Port:
    """Parse a port mapping, `[HOST_IP:]PORT[:PORT]`. Raise `InvalidError` if it is malformed."""
    from ipaddress import ip_address

    match = _PORT.fullmatch(text)
    if match is None:
        raise InvalidError(
            f"{shown(text)} is not a port",
            "Write 8000, or 8080:8000 (this machine's port, then the command's), or begin with an"
            " address of this machine: 0.0.0.0:8000:8000",
        )
    inside = int(match["inside"])
    outside = int(match["outside"] or inside)
    for number in (outside, inside):
        if not 1 <= number <= types.LAST_PORT:
            raise InvalidError(
                f"{shown(text)}: {number} is not a port",
                f"A port is a number from 1 to {types.LAST_PORT}.",
            )
    try:
        host = ip_address((match["host"] or LOOPBACK).strip("[]"))
    except ValueError as error:
        raise InvalidError(
            f"{shown(text)}: {error}",
            "Write an address of this machine, such as 127.0.0.1 or [::1], or omit the address.",
        ) from error
    return Port(host=str(host), outside=outside, inside=inside)


def volume(text: str, folder: Path) -> Volume:
    """Parse a volume, `SOURCE:TARGET[:ro]`. A relative source is resolved against `folder`.

    Raise `InvalidError` if the text is malformed or the source does not exist.
    """
    source, _, rest = text.partition(":")
    target, _, option = rest.partition(":")
    if not source or not target or option not in {"", "ro", "rw"}:
        raise InvalidError(
            f"{shown(text)} is not a valid volume",
            "Write SOURCE:TARGET or SOURCE:TARGET:ro, such as ./data:/data. To get more output,"
            " use --verbose instead of -v.",
        )
    return Volume(
        source=_source(source, folder), target=place_inside(target), writable=option != "ro"
    )


def _source(text: str, folder: Path) -> str:
    """Return the absolute path of a folder on this machine, or the name of an engine's volume.

    Raise `InvalidError` if the text is neither, or if the folder does not exist or is a file.
    """
    if not text.startswith(_FOLDER_STARTS):
        if _VOLUME_NAME.fullmatch(text):
            return text
        raise InvalidError(
            f"{shown(text)} is neither a folder nor the name of a volume",
            "Begin a folder's path with ./, / or ~/. A volume's name consists of letters, digits,"
            " _, . and -.",
        )
    try:
        path = (folder / Path(text).expanduser()).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidError(
            f"{shown(text)}: no such folder", "Create it first, or check its name."
        ) from error
    if not path.is_dir():
        raise InvalidError(f"{shown(text)} is not a folder", "Name the folder that contains it.")
    return str(path)


def place_inside(text: str) -> str:
    """Normalize a path in a container. Raise `InvalidError` if nothing may be mounted there."""
    path = PurePosixPath(text)
    plain = text.rstrip("/") or "/"
    if str(path) != plain or not path.is_absolute() or "//" in plain or ".." in path.parts:
        raise InvalidError(
            f"{shown(text)} is not an absolute path in the container",
            "Write a path that begins with / and has no `..`, such as /data.",
        )
    if not text.isprintable():
        raise InvalidError(f"{shown(text)}: the path has unprintable characters")
    if reason := covered(path):
        raise InvalidError(
            f"{shown(text)} would cover {reason}",
            "Choose another path, such as /data.",
        )
    return str(path)


def covered(path: PurePosixPath) -> str:
    """Return a description of the image folder that a mount at `path` must not hide or change.

    Return an empty string if a mount is allowed there.
    """
    for folder in _CLOSED:
        if PurePosixPath(folder).is_relative_to(path) or path.is_relative_to(folder):
            return f"{folder} of the image"
    for folder in _KEPT_WHOLE:
        if PurePosixPath(folder).is_relative_to(path):
            return f"{folder} of the image"
    return ""


def variable(text: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Parse `NAME=VALUE` or `NAME`, and return the name and the value.

    For `NAME` alone, return None as the value. None stands for the value in the caller's
    environment. Raise `InvalidError` if the text is malformed, if the environment itself sets the
    variable, or if `NAME` alone is given but is not set in the caller's environment.
    """
    name, sign, value = text.partition("=")
    try:
        decoding.convert(name, types.Variable)
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"{shown(name)} is not a valid variable name", "Write NAME, or NAME=VALUE."
        ) from error
    if name in _ENVIRONMENTS_OWN:
        raise InvalidError(
            f"{name} cannot be set, because the environment sets it", "Remove this variable."
        )
    if not sign and name not in environ:
        raise InvalidError(
            f"{name} is not set on this machine",
            f"Set it first (export {name}=…), or write {name}=VALUE.",
        )
    return name, value if sign else None


def of_project(settings: Settings) -> Access:
    """Return the access that the project's definition gives to every command in the environment.

    Raise `InvalidError` if a folder does not exist, or if a volume would cover part of an image.
    The error message contains the entry in the project's file.
    """
    definition = settings.definition
    name = settings.environment
    project = settings.project
    if definition is None or project is None:
        return NOTHING
    ports = environments.of(settings).ports
    volumes = {volume.target: volume for volume in _volumes(definition, name, project)}
    imported = [*environments.paths(definition, name, project, "python_path")]
    programs: tuple[Path, ...] = ()
    own_folders: tuple[Volume, ...] = ()
    if definition.install_project:
        from envbuilder.builds import project_folder

        installable = package.of(settings)
        laid = project_folder.lay(settings, installable.texts)
        own_folders = (own_folder(laid, "project"),)
        programs = (laid / project_folder.PROGRAMS,) if installable.commands else ()
        for note in installable.notes:
            console.progress().note(f"warning: install_project: {note}")
        imported += [project / folder for folder in installable.folders]
        imported.append(laid / package.FOLDER)
    return Access(
        ports=tuple(Port(outside=number, inside=number) for number in dict.fromkeys(ports)),
        volumes=tuple(volumes.values()),
        python_path=tuple(dict.fromkeys(imported)),
        programs=programs,
        own_folders=own_folders,
    )


def hooked(access: Access, settings: Settings, plan: Plan) -> Access:
    """Return the access with an additional startup hook that makes Python explain failed imports.

    If the hook cannot be written, return the access unchanged.
    """
    from envbuilder.builds import project_folder

    locked = {file.name for file in plan.files}
    hook = project_folder.lay_hook(settings, locked, in_image=plan.artifact.kind == "image")
    if hook is None:
        return access
    return replace(
        access,
        python_path=(hook, *access.python_path),
        own_folders=(own_folder(hook, "hook"), *access.own_folders),
        shares_cores=True,
    )


def own_folder(folder: Path, name: str, *, writable: bool = False) -> Volume:
    """Return the volume that mounts one of envbuilder's own folders in a container.

    `name` becomes the name of the folder in the container.
    """
    return Volume(source=str(folder), target=f"{conventions.OWN}/{name}", writable=writable)


def project_command(settings: Settings, asked: str = "run") -> tuple[str, ...]:
    """Return the command that the project file defines for the environment.

    Raise `InvalidError` if the file defines no command. `asked` is the envbuilder command to
    suggest in the error's hint.
    """
    command = environments.of(settings).command
    if not command:
        raise InvalidError(
            "no command was given, and envbuilder.yaml defines none",
            (
                Hint("Set it in envbuilder.yaml: command: [python, train.py]"),
                Hint("Or give it after --", (asked, "--", "python", "FILE")),
            ),
        )
    return command


def _volumes(definition: Definition, name: str, project: Path) -> Iterator[Volume]:
    for (source, target), where in environments.entries(definition, name, project, "volumes"):
        try:
            path = place_inside(target)
            is_folder = source.startswith("./")
            mounted = (
                _project_folder(project, source) if is_folder else volume_name(project, source)
            )
        except InvalidError as error:
            with_context(error, f"{where}: volumes")
            raise
        yield Volume(source=mounted, target=path)


def _project_folder(project: Path, text: str) -> str:
    """Return the absolute path of a folder in the project.

    Raise `InvalidError` if the folder does not exist, or if it is a link that leads out of the
    project.
    """
    folder = (project / text).resolve()
    if not folder.is_relative_to(project.resolve()):
        raise InvalidError(
            f"{shown(text)} is outside the project",
            f"Instead, mount the folder when you run a command: -v {process.quoted([text])}:PATH",
        )
    if not folder.is_dir():
        raise InvalidError(
            f"{shown(text)} is not a folder in the project",
            f"Create it first: mkdir -p {process.quoted([str(folder)])}",
        )
    return str(folder)


def volume_name(project: Path, name: str) -> str:
    """Return the name that an engine uses for a project's volume.

    The returned name is unique to the project.
    """
    return f"envbuilder-{files.folder_identity(project)[:12]}-{name}"
