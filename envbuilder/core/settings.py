"""envbuilder's folders, the user's configuration, and a project's definition in `envbuilder.yaml`.

Configuration is read from `envbuilder.yaml` and from `config.yaml` in the user's configuration
folder. `envbuilder.yaml` is in the working folder or in a folder above it, up to the home folder or
the root of the file system. The project's file takes precedence over the user's file, and
environment variables take precedence over both. An `envbuilder.yaml` of another user is ignored. If
any other file belongs to another user, that is an error.

This module is long because it describes all keys of both files, and common mistakes in them.
"""

# No annotations from __future__: msgspec would evaluate the text of each, at every start.

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import asdict, fields, replace

from envbuilder.core import console, files, types
from envbuilder.core.decoding import Hints, decode, error_at, parse_yaml, place
from envbuilder.core.errors import InvalidError, shown

PROJECT_FILE = "envbuilder.yaml"
LOCKS = "envbuilder.lock"
"""Name of the folder of a project's locks, next to `envbuilder.yaml`."""
STORE = "store"
"""Name of the folder that stores downloads by their sha256, in the user's cache and in a shared
one."""
DERIVED = "derived"
"""Subfolder of the store for results that can be computed again."""
SHARED_STORE = "ENVBUILDER_SHARED_STORE"
DEFAULT = "default"
"""Name of the environment that the top-level keys describe."""

_PYTHONPATH = "PYTHONPATH"

ProjectPath = Annotated[
    str,
    Meta(
        pattern=r"^(?!/)(?!(.*/)?\.\.(/|\Z))[^\x00-\x1f\x7f\"'\\`$:*?<>|]{1,200}\Z",
        description="the path of a file in the project, without `..`",
        extra={
            "hint": (
                "Write the path relative to envbuilder.yaml. Copy files from elsewhere into the"
                " project."
            )
        },
    ),
]
RequirementLine = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][^\x00-\x1f\x7f\\`$]{0,500}\Z",
        description="a package, such as rich>=13",
        extra={
            "hint": (
                "List files under requirements_from:. The project's own code needs no entry,"
                " since commands run in its folder."
            )
        },
    ),
]
"""A requirement (PEP 508). Only its characters are checked here. The resolver's parser checks the
rest."""
Extra = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?\Z",
        description="the name of an extra or a group",
    ),
]


Port = Annotated[
    int,
    Meta(ge=1, le=types.LAST_PORT, extra={"hint": "Write only the number, as in ports: [8000]"}),
]
Word = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff`$\\]{1,1000}\Z",
        description="a word of one line without backquotes, dollar signs and backslashes",
    ),
]
"""A word of a command.

No shell reads the word, but programs that read rendered files may substitute parts of it.
"""
VolumeSource = Annotated[
    str,
    Meta(
        pattern=r"^(\./(?!(.*/)?\.\.(/|\Z))[^\x00-\x1f\x7f\"'\\`$:*?<>|]{1,200}"
        r"|[a-z0-9][a-z0-9-]{0,30})\Z",
        description="a volume's name of lower-case letters, digits and hyphens, or ./FOLDER of the"
        " project",
        extra={
            "hint": (
                "Mount a folder of this machine on the command line: `envbuilder run -v"
                " FOLDER:PATH`"
            )
        },
    ),
]
VolumeTarget = Annotated[
    str,
    Meta(
        pattern=r"^/(?!.*\.\.)[A-Za-z0-9._+/-]{1,200}\Z",
        description="an absolute path in the container",
    ),
]


class RequirementFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that lists requirements, with the extras and dependency groups to include."""

    file: ProjectPath
    """Path of the file, such as `requirements.txt`, `pyproject.toml`, `setup.py`, `uv.lock` or
    `environment.yml`."""
    extras: tuple[Extra, ...] = ()
    """Groups of optional dependencies of a `pyproject.toml` or `uv.lock` to include."""
    groups: tuple[Extra, ...] = ()
    """Dependency groups of a `pyproject.toml` or `uv.lock` to include."""


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment contains in addition to the contents of the profile for the hardware."""

    requirements: tuple[RequirementLine, ...] = ()
    """Packages as PEP 508 lines, including `name @ ./FOLDER` and `name @ git+https://…`. The
    framework comes from the profile and need not be listed."""
    requirements_from: tuple[ProjectPath | RequirementFile, ...] = ()
    """Files that list more requirements."""
    python: types.PythonChoice | None = None
    """The Python version. By default, this is the profile's default among the versions that the
    files allow. `managed`, alone or before a version, selects the interpreter in the lock, by hash,
    instead of one on the machine."""
    system_packages: tuple[types.DebianPackage, ...] = ()
    """Debian packages to install in images, in addition to the packages that `lock` adds for
    wheels."""
    environment: dict[types.Variable, types.VariableValue] = {}
    """Environment variables to set in the environment."""
    files: tuple[ProjectPath, ...] = ()
    """Files and folders of the project that `envbuilder build` puts into its image."""
    python_path: tuple[ProjectPath, ...] = ()
    """Folders of the project from which commands import modules, such as `src`."""
    command: Annotated[
        tuple[Word, ...], Meta(min_length=1, max_length=100, extra={"words": True})
    ] = ()
    """The command that `envbuilder run` runs by default: a program and its arguments."""
    ports: Annotated[tuple[Port, ...], Meta(max_length=100)] = ()
    """Ports of a container that can be reached from this machine, at 127.0.0.1."""
    volumes: dict[VolumeSource, VolumeTarget] = {}
    """Volumes to mount in a container, in addition to the project → where to mount them. A source
    is either the name of an engine's volume, which belongs to the project, or a folder of the
    project as `./FOLDER`."""

    @property
    def is_managed(self) -> bool:
        """Whether the interpreter comes from the lock, even if the machine has a suitable one."""
        return (self.python or "").startswith("managed")


class Definition(Environment, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a project. Its top-level keys describe the `default` environment."""

    profiles: Annotated[tuple[types.Name, ...], Meta(min_length=1)] | None = None
    """The profiles to support. By default, these are all profiles of the framework that are not
    opt-in."""
    framework: types.Framework | None = None
    """The framework. By default, this is the framework that packages require, or `torch` if they
    require none."""
    framework_version: types.FrameworkRelease | None = None
    """Release of the framework, such as "2.7" or "2.7.1". By default, this is the release that
    packages require, or else the release that this version of envbuilder was verified with."""
    as_of: types.Day | None = None
    """Date limit. Releases uploaded to the index after this day are ignored."""
    build_from_source: bool | tuple[types.Distribution, ...] = False
    """Packages that may be built from source, or `true` for all packages that have no wheel. The
    build runs the packages' own code, without network access and without access to your files."""
    cuda_architectures: tuple[types.CudaArchitecture, ...] = ()
    """GPUs to compile CUDA code for when building from source. By default, these are the GPUs that
    PyTorch is compiled for. Listing fewer GPUs shortens the build."""
    overrides: dict[types.Distribution, types.Requirement] = {}
    """Package → the requirement that replaces it everywhere: other versions of the same package, or
    another package. With a marker, the replacement applies only where the marker holds, and another
    package replaces only the requirements in your own files."""
    exclude: tuple[types.Distribution, ...] = ()
    """Packages to leave out, even if other packages require them."""
    install_project: bool = False
    """Whether to install the project itself, so that it can be imported from any folder and its
    commands are available."""
    environments: dict[types.Name, Environment] = {}
    """Further environments. Each has the contents of the top-level keys in addition to its own."""


_MEANT = {
    "requirements": (
        "packages",
        "dependencies",
        "deps",
        "pip",
        "pip_packages",
        "python_packages",
        "install_requires",
        "libraries",
    ),
    "requirements_from": (
        "requirements_txt",
        "requirement_files",
        "file",
        "from",
        "pyproject",
        "environment_yml",
        "lockfile",
    ),
    "python": ("python_version", "requires-python"),
    "system_packages": ("apt", "apt_packages", "apt-get", "debian", "debs", "os_packages"),
    "environment": ("env", "environment_variables", "vars"),
    "command": ("run", "script", "entry_point", "args"),
    "files": ("copy", "include", "includes", "code", "add", "source_files"),
    "ports": ("publish", "expose", "forwardPorts"),
    "volumes": ("mount", "binds"),
    "python_path": ("PYTHONPATH", "src", "sources"),
}
"""Key → what users write instead of the key, if it is too different from it for a suggestion.

`decode` describes how these are used.
"""
_ENVIRONMENT_HINTS = {
    **{wrong: f"Did you mean '{key}'?" for key, others in _MEANT.items() for wrong in others},
    **dict.fromkeys(
        ("channels", "conda", "conda_packages"),
        "For conda packages, list the file that names them: requirements_from: [environment.yml]",
    ),
    **dict.fromkeys(
        ("extras", "groups", "dependency_groups", "dependency-groups"),
        "Write it next to its file, as for groups: requirements_from: [{file: pyproject.toml,"
        " extras: [NAME]}]",
    ),
    **dict.fromkeys(
        ("accelerator", "accelerators", "device", "devices", "gpu", "cuda", "hardware"),
        "Remove the key: each machine has its own profile. To support only some profiles, write"
        " profiles: [cpu, cuda]",
    ),
    **dict.fromkeys(
        ("platforms", "platform", "arch"),
        "Remove the key: every profile lists its platforms.",
    ),
    **dict.fromkeys(
        ("backend", "backends", "builder", "engine"),
        "Remove the key, and pass --backend to each command.",
    ),
    **dict.fromkeys(
        ("base_image", "base", "image", "docker", "from_image"),
        "Remove the key: every profile has a base image. To use another one, set"
        " ENVBUILDER_BASE_IMAGE, or base_images: at the top level.",
    ),
    **dict.fromkeys(
        ("index", "index_url", "index-url", "extra_index_url", "extra-index-url", "find_links"),
        "Remove the key, and configure the index in pip or uv. The frameworks' indexes come from"
        " the profiles.",
    ),
    **dict.fromkeys(
        ("torch", "pytorch", "jax", "tensorflow", "tf", "keras", "frameworks"),
        "Remove the key: the framework comes from the profile. For one other than PyTorch, write"
        " framework: jax at the top level.",
    ),
}
HINTS: Hints = {
    Definition: {
        **_ENVIRONMENT_HINTS,
        "envs": "Did you mean 'environments'?",
        "extends": (
            "Write extends: in profiles/NAME.yaml, since only profiles extend each other. A"
            " project lists `profiles`."
        ),
        "name": "Remove the key: envbuilder identifies a project by its folder.",
        "version": "Remove the key: this file has no version.",
        "plain_http": (
            "Move it to config.yaml in your configuration folder: only you may decide to send"
            " your login unencrypted."
        ),
    },
    Environment: {
        **_ENVIRONMENT_HINTS,
        "name": "Remove the key: the key above it is the environment's name.",
    },
    RequirementFile: {
        **dict.fromkeys(
            ("path", "name", "filename", "from", "requirements"), "Did you mean 'file'?"
        ),
        **dict.fromkeys(
            ("optional_dependencies", "optional-dependencies"), "Did you mean 'extras'?"
        ),
        **dict.fromkeys(("dependency_groups", "dependency-groups"), "Did you mean 'groups'?"),
    },
}


_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_Keys = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]


class Signatures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys whose signatures are required, for each kind of file.

    If a kind of file has no keys, no signature is required for it. A key is the path of a PEM file,
    relative to the configuration's folder, or the PEM text itself. A signature by any one of the
    listed keys is sufficient.
    """

    locks: _Keys | None = None
    """Keys for the locks that environments are built from."""
    bundles: _Keys | None = None
    """Keys for the bundles that `unbundle` unpacks."""


class ProjectConfiguration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration keys that are allowed in both `envbuilder.yaml` and `config.yaml`."""

    base_images: dict[str, types.ImageRef] = {}
    """Image reference as in a lock, but without the digest → the reference to use instead."""
    indexes: dict[types.Source, types.Url] = {}
    """Symbolic name of a package source → URL of a mirror."""
    mirrors: dict[types.Registry, str] = {}
    """Registry → the mirror to try first for the registry's images. A mirror is a host, optionally
    with a path."""
    profile: types.Name | None = None
    """The profile to use if none is requested."""
    signatures: Signatures = Signatures()
    """Required signatures. A project's file adds to the requirements of the user's file and never
    replaces them. Otherwise, a project could remove the user's requirements."""
    shared_store: str | None = None
    """A cache folder that somebody else fills. envbuilder takes files from it and never changes
    it."""


class Configuration(ProjectConfiguration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration keys that are allowed in `config.yaml`."""

    plain_http: tuple[types.Registry, ...] = ()
    """Registries to use HTTP with, each as host or host:port. Registries on this machine need no
    entry. Only the user may decide to send credentials unencrypted."""


class Settings(Struct, frozen=True, kw_only=True):
    """envbuilder's folders and configuration, read once per command."""

    project: Path | None
    config_dir: Path
    cache_dir: Path
    data_dir: Path
    configuration: Configuration
    shared_store: Path | None = None
    definition: Definition | None = None
    """The project's definition, or None if the project's file contains only configuration."""
    environment: str = DEFAULT
    """Name of the environment in the project that the command uses."""

    @property
    def store_dir(self) -> Path:
        """Folder that stores downloads by their sha256, shared by all profiles and backends."""
        return self.cache_dir / STORE

    @property
    def envs_dir(self) -> Path:
        """Folder that contains native environments, with one folder per fingerprint."""
        return self.data_dir / "envs"

    @property
    def unpacked_dir(self) -> Path:
        """Folder that contains unpacked wheels.

        The folder is on the same file system as the environments, whose files are links to the
        unpacked files.
        """
        return self.data_dir / "unpacked"

    @property
    def records_dir(self) -> Path:
        """Folder that contains the records of built images, with one folder per fingerprint."""
        return self.data_dir / "records"

    @property
    def bases_dir(self) -> Path:
        """Folder that contains base images as OCI layouts."""
        return self.cache_dir / "bases"

    @property
    def uploads_dir(self) -> Path:
        """Folder that records which blobs each registry repository contains.

        Other repositories in the same registry can then mount these blobs.
        """
        return self.cache_dir / "uploads"

    @property
    def logs_dir(self) -> Path:
        """Folder that contains the full output of build steps."""
        return self.cache_dir / "logs"

    @property
    def interpreters_dir(self) -> Path:
        """Folder that caches what this machine's interpreters report about themselves."""
        return self.cache_dir / "interpreters"

    @property
    def uv_dir(self) -> Path:
        """Folder for the cache that uv uses for resolving.

        None of its files end up in an environment.
        """
        return self.cache_dir / "uv-resolve"


class _File(NamedTuple):
    """A configuration file that has been read."""

    where: str
    text: str
    read: Configuration


def load(
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    note: Callable[[str], object] | None = None,
    environment: str = DEFAULT,
) -> Settings:
    """Return the settings for the folder `cwd` and the variables `environ`.

    The defaults are the working folder and the variables of this process. If a project is ignored
    because another user owns its file or can write to it, `note` is called with a line that says
    so. By default, the line is printed to stderr. `environment` is the name of the project's
    environment for which the settings are read. Raise `InvalidError` if a file is invalid, or if
    any other file belongs to another user.
    """
    note = note or console.PlainProgress().note
    trusted = files.current_trust(environ)
    project = _project(cwd or Path.cwd(), trusted, note)
    from platformdirs import PlatformDirs

    dirs = PlatformDirs("envbuilder", appauthor=False)
    config_dir = Path(environ.get("ENVBUILDER_CONFIG_DIR") or dirs.user_config_dir).absolute()
    configuration = Configuration()
    definition = None
    paths = [config_dir / "config.yaml", *([project / PROJECT_FILE] if project else [])]
    read: list[_File] = []
    files.require_own(config_dir, trusted)
    cache_dir = Path(environ.get("ENVBUILDER_CACHE_DIR") or dirs.user_cache_dir).absolute()
    derived = cache_dir / STORE / DERIVED
    # False without permission, too, unlike `Path.is_dir`.
    cached = os.path.isdir(derived) and not files.exposure(  # noqa: PTH112
        derived.parent, trusted
    )
    for path in paths:
        if path.is_file():
            text = files.read_text(path)
            file_configuration, definition = decoded(text, path, derived if cached else None)
            configuration = _over(configuration, _located(file_configuration, path.parent))
            read.append(_File(where=str(path), text=text, read=file_configuration))
    return Settings(
        project=project,
        config_dir=config_dir,
        cache_dir=cache_dir,
        data_dir=Path(environ.get("ENVBUILDER_DATA_DIR") or dirs.user_data_dir).absolute(),
        configuration=configuration,
        shared_store=_shared_store(environ.get(SHARED_STORE), read),
        definition=definition,
        environment=environment,
    )


def decoded(
    text: str, path: Path, cache: Path | None = None
) -> tuple[Configuration, Definition | None]:
    """Return the configuration in a file and, for a project's file, the project's definition.

    `cache` is a folder for parsed files. It saves time, since importing PyYAML takes as long as
    starting Python. If the file is invalid, raise an `InvalidError` that says where the error is
    and what to write instead.
    """
    where = str(path)
    if cache:
        copy = cache / f"{files.folder_identity(path)}.json"
        data = files.parse_cached(text, path, copy, is_users=True)
    else:
        data = parse_yaml(text, where)
    if path.name != PROJECT_FILE:
        return decode(data, Configuration, where, text), None
    keys = {f.encode_name for f in fields(ProjectConfiguration)}
    rest = {key: value for key, value in data.items() if key not in keys}
    definition = read_definition(rest, where, text, keys) if rest else None
    configuration = {key: value for key, value in data.items() if key in keys}
    decoded_file = decode(configuration, ProjectConfiguration, where, text)
    for name, url in decoded_file.indexes.items():
        if url.startswith("http://") and urlsplit(url).hostname not in _THIS_MACHINE:
            raise error_at(
                where,
                text,
                ["indexes", name],
                "a project cannot choose an unencrypted connection, which would expose your login",
                "Write https://, or write the key into config.yaml in your configuration folder.",
            )
    return Configuration(**asdict(decoded_file)), definition


def read_definition(
    data: dict[str, Any], where: str, text: str, others: Iterable[str]
) -> Definition:
    """Convert the data of a project's file to its definition. Raise `InvalidError` for mistakes.

    `others` contains the other keys that are allowed in the same file. Hints may suggest these
    keys.
    """
    if empty := next(_without_value(data), None):
        raise error_at(where, text, empty, "has no value", "Write a value, or remove the key.")
    top = {**{key: f"Did you mean '{key}'?" for key in others}, **HINTS[Definition]}
    definition = decode(data, Definition, where, text, {**HINTS, Definition: top})
    if relative := next(_relative_python_path(definition), None):
        raise error_at(
            where,
            text,
            relative,
            "has a relative path, which depends on the current folder",
            "List folders of the project under python_path, such as python_path: [src]",
        )
    if DEFAULT in definition.environments:
        raise error_at(
            where,
            text,
            ["environments", DEFAULT],
            "the top-level keys already describe this environment",
            "Move its keys to the top level, or give it another name.",
        )
    profiles = definition.profiles or ()
    for number, name in enumerate(profiles):
        if name in profiles[:number]:
            path = ["profiles", str(number)]
            raise error_at(
                where, text, path, f"{shown(name)} is listed twice", "Remove one of them."
            )
    return definition


def _relative_python_path(definition: Definition) -> Iterator[Sequence[str]]:
    """Yield the key path of each PYTHONPATH variable that contains a relative folder."""
    others = ((["environments", n], e) for n, e in definition.environments.items())
    for above, environment in (([], definition), *others):
        value = environment.environment.get(_PYTHONPATH, "")
        if any(not folder.startswith("/") for folder in value.split(":") if value):
            yield [*above, "environment", _PYTHONPATH]


def _without_value(data: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the path of each key that has no value, if it would otherwise count as missing.

    For example, `profiles:` without a list is probably a mistake and must not select all profiles.
    """
    for key in ("python", "profiles", "framework", "framework_version"):
        if key in data and data[key] is None:
            yield [key]
    environments = data.get("environments")
    for name, environment in environments.items() if isinstance(environments, dict) else ():
        if isinstance(environment, dict) and environment.get("python", "") is None:
            yield ["environments", name, "python"]


def _shared_store(variable: str | None, files: Sequence[_File]) -> Path | None:
    """Return the folder of the shared store, or None if there is none.

    `variable` takes precedence over the files. If it is set but empty, there is no shared store.
    Raise `InvalidError` for a relative path, which would refer to a different folder in each
    project.
    """
    path = variable
    where = SHARED_STORE
    if path is None:
        for file in files:
            if file.read.shared_store is not None:
                path = file.read.shared_store
                where = f"{place(file.where, file.text, ['shared_store'])}: shared_store"
    if path and not Path(path).is_absolute():
        raise InvalidError(
            f"{where}: {shown(path)} is not an absolute path",
            "Begin the path with /: a relative one would name a different folder in each project.",
        )
    return Path(path) if path else None


def _project(start: Path, trusted: files.Trust, note: Callable[[str], object]) -> Path | None:
    """Return the nearest folder that contains a trusted project file, or None if there is none.

    Another user's project file is skipped, because such a file could be in any parent folder. If
    the project file is trusted, its profiles and locks must be trusted, too. Otherwise, the
    project's requirements would not be enforced.
    """
    try:
        home = Path.home()
    except RuntimeError:  # HOME is not set, and the user database has no entry
        home = None
    for folder in files.folders_above(start, home):
        if not (folder / PROJECT_FILE).is_file():
            continue
        reason = files.objection(folder / PROJECT_FILE, trusted)
        if not reason:
            for name in ("profiles", LOCKS):
                files.require_own(folder / name, trusted)
            files.require_unlinked(folder / LOCKS)
            return folder
        note(f"note: {files.ignored_note(folder, reason)}")
    return None


def _located(configuration: Configuration, folder: Path) -> Configuration:
    """Return a file's configuration, with the paths of its signature keys made absolute."""
    keys = {
        kind: paths and tuple([_key(path, folder) for path in paths])
        for kind, paths in asdict(configuration.signatures).items()
    }
    return replace(configuration, signatures=Signatures(**keys))


def is_key_text(key: str) -> bool:
    """Return whether a key is given as PEM text rather than as the path of a file."""
    return key.lstrip().startswith("-----BEGIN ")


def _key(key: str, folder: Path) -> str:
    if is_key_text(key):
        return key
    return str(folder / Path(key).expanduser())


def _over(below: Configuration, above: Configuration) -> Configuration:
    return Configuration(
        base_images={**below.base_images, **above.base_images},
        indexes={**below.indexes, **above.indexes},
        mirrors={**below.mirrors, **above.mirrors},
        plain_http=(*below.plain_http, *above.plain_http),
        profile=above.profile or below.profile,
        signatures=Signatures(
            locks=below.signatures.locks or above.signatures.locks,
            bundles=below.signatures.bundles or above.signatures.bundles,
        ),
        shared_store=below.shared_store if above.shared_store is None else above.shared_store,
    )


def require_own(settings: Settings) -> None:
    """Raise `InvalidError` if another user can add files to a folder whose files builds reuse."""
    cache = settings.cache_dir
    read = (settings.store_dir, settings.bases_dir, cache / "layers", cache / "datasets")
    for folder in (*read, settings.interpreters_dir, settings.envs_dir, settings.records_dir):
        require_unexposed(folder)


def require_unexposed(folder: Path) -> None:
    """Raise `InvalidError` if another user can add files to one of envbuilder's folders."""
    if reason := files.exposure(folder, files.current_trust()):
        raise InvalidError(
            f"{folder} cannot be used: {reason}, so envbuilder could run other users' files as"
            " yours",
            "Set ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to folders of your own. To use"
            f" another user's downloads, set {SHARED_STORE}. To trust the folder anyway, set"
            f" {files.TRUSTED_VARIABLE}={folder.parent}",
        )


def require_writable(folder: Path, *, marked: bool = True) -> Path:
    """Return the folder, creating it if it is missing.

    Raise `InvalidError` if the folder cannot be created or another user can add files to it, and
    `BuildError` if the disk is full.
    """
    require_unexposed(folder)
    try:
        return files.ensure_folder(folder, marked=marked)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise files.full_or_broken(error, folder) from error
        raise InvalidError(
            f"{folder}: cannot be created: {error.strerror}",
            "Set ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to folders you can write to.",
        ) from error
