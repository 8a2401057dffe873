"""What `envbuilder.yaml` says of a project: its environments, and for which hardware."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from envbuilder.core import types
from envbuilder.core.decoding import Hints, decode, error_at
from envbuilder.core.text import shown

DEFAULT = "default"
"""The environment that the top-level keys describe."""

_PYTHONPATH = "PYTHONPATH"

ProjectPath = Annotated[
    str,
    Meta(
        pattern=r"^(?!/)(?!(.*/)?\.\.(/|\Z))[^\x00-\x1f\x7f\"'\\`$:*?<>|]{1,200}\Z",
        description="the path of a file in the project, without `..`",
        extra={
            "hint": "Write its path from the folder of envbuilder.yaml; copy files from elsewhere."
        },
    ),
]
RequirementLine = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][^\x00-\x1f\x7f\\`$]{0,500}\Z",
        description="a package, such as rich>=13",
        extra={
            "hint": "List files under requirements_from:. The project's own code needs no"
            " requirement: commands run in its folder."
        },
    ),
]
"""A requirement (PEP 508); the resolver's own parser checks the rest."""
Extra = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?\Z",
        description="the name of an extra or a group",
    ),
]


Port = Annotated[
    int,
    Meta(ge=1, le=types.LAST_PORT, extra={"hint": "Write the number alone, as in ports: [8000]"}),
]
Word = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff`$\\]{1,1000}\Z",
        description="a word of one line without backquotes, dollar signs and backslashes",
    ),
]
"""A word of a command. No shell reads it, but what reads rendered files could replace parts."""
VolumeSource = Annotated[
    str,
    Meta(
        pattern=r"^(\./(?!(.*/)?\.\.(/|\Z))[^\x00-\x1f\x7f\"'\\`$:*?<>|]{1,200}"
        r"|[a-z0-9][a-z0-9-]{0,30})\Z",
        description="a volume's name of lower-case letters, digits and hyphens, or ./FOLDER of the"
        " project",
        extra={
            "hint": "Folders elsewhere are for one machine alone: `envbuilder run -v FOLDER:PATH`"
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
    """A file that lists requirements, and which of its lists count."""

    file: ProjectPath
    """Its path: `requirements.txt`, `pyproject.toml`, `setup.py`, `uv.lock`, `environment.yml` …"""
    extras: tuple[Extra, ...] = ()
    """Optional dependencies of a `pyproject.toml` or `uv.lock` to include."""
    groups: tuple[Extra, ...] = ()
    """Dependency groups of a `pyproject.toml` or `uv.lock` to include."""


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment holds in addition to the profile of the hardware."""

    requirements: tuple[RequirementLine, ...] = ()
    """Packages (PEP 508 lines). The framework comes from the profile and need not be listed."""
    requirements_from: tuple[ProjectPath | RequirementFile, ...] = ()
    """Files that list more of them."""
    python: types.PythonChoice | None = None
    """The Python version; without it, the profile's default that the files allow. `managed`, alone
    or before a version: not an interpreter of the machine, but the one whose hash the lock has."""
    system_packages: tuple[types.DebianPackage, ...] = ()
    """Debian packages to install in images."""
    environment: dict[types.Variable, types.VariableValue] = {}
    """Variables that are set inside."""
    files: tuple[ProjectPath, ...] = ()
    """Files and folders of the project that `envbuilder build` puts into its image."""
    python_path: tuple[ProjectPath, ...] = ()
    """Folders of the project that commands import modules from, such as `src`."""
    command: Annotated[
        tuple[Word, ...], Meta(min_length=1, max_length=100, extra={"words": True})
    ] = ()
    """What `envbuilder run` does if it is given no command: a program and its arguments."""
    ports: Annotated[tuple[Port, ...], Meta(max_length=100)] = ()
    """Ports of a container that are reachable on this machine, at 127.0.0.1."""
    volumes: dict[VolumeSource, VolumeTarget] = {}
    """What a container has in addition to the project, and where: a volume of the engine by its
    name, which is the project's own, or a folder of the project as `./FOLDER`."""

    @property
    def is_managed(self) -> bool:
        """Whether the interpreter is the lock's, whatever the machine has."""
        return (self.python or "").startswith("managed")


class Definition(Environment, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project: its top-level keys are the environment `default`."""

    profiles: Annotated[tuple[types.Name, ...], Meta(min_length=1)] | None = None
    """The profiles to support; by default all of the framework that are not opt-in."""
    framework: types.Framework | None = None
    """By default the one that packages require, else `torch`."""
    framework_version: types.FrameworkVersion | None = None
    """Its release, such as "2.7" or "2.7.1"; by default what packages require, else the one that
    this version of envbuilder verified."""
    as_of: types.Day | None = None
    """No release of a package that the index got after this day is taken."""
    build_from_source: bool | tuple[types.Distribution, ...] = False
    """Packages that may be built from their sources, or `true` for all that have no wheel. Their
    own code runs then, without network and away from your files."""
    cuda_architectures: tuple[types.CudaArchitecture, ...] = ()
    """The GPUs that code for CUDA is compiled for while building from source; by default those that
    PyTorch is compiled for. Fewer take less time."""
    overrides: dict[types.Distribution, types.Requirement] = {}
    """Package → the requirement that replaces it, whoever requires it: other versions of the same
    package, or another package. With a marker, it holds there alone; another package for one place
    replaces the lines of your files."""
    exclude: tuple[types.Distribution, ...] = ()
    """Packages that are left out, whoever requires them."""
    install_project: bool = False
    """Whether the project itself is installed: importable from any folder, with its commands."""
    environments: dict[types.Name, Environment] = {}
    """More environments: each has what the top-level keys list, and its own in addition."""


_MEANT = {
    "requirements": (
        "packages",
        "dependencies",
        "deps",
        "pip",
        "pip_packages",
        "python_packages",
        "require",
        "add_requirements",
        "install_requires",
        "libraries",
    ),
    "requirements_from": (
        "requirements_file",
        "requirements_files",
        "requirements_txt",
        "requirement_files",
        "file",
        "from",
        "pyproject",
        "environment_yml",
        "lockfile",
    ),
    "python": ("python_version", "requires_python", "requires-python", "pythons"),
    "system_packages": ("apt", "apt_packages", "apt-get", "debian", "debs", "os_packages"),
    "environment": ("env", "env_vars", "environment_variables", "variables", "vars"),
    "command": ("cmd", "run", "script", "entrypoint", "entry_point", "args", "commands"),
    "files": ("copy", "include", "includes", "code", "add", "source_files"),
    "ports": ("port", "publish", "expose", "forward_ports", "forwardPorts"),
    "volumes": ("volume", "mounts", "mount", "binds"),
    "python_path": ("pythonpath", "PYTHONPATH", "pythonpaths", "sys_path", "src", "sources"),
}
"""Key → others that users write for it."""
_ENVIRONMENT_HINTS = {
    **{wrong: f"Did you mean '{key}'?" for key, others in _MEANT.items() for wrong in others},
    **dict.fromkeys(
        ("channels", "conda", "conda_packages"),
        "For conda packages, list the file that names them: requirements_from: [environment.yml]",
    ),
    **dict.fromkeys(
        ("extras", "groups", "dependency_groups", "dependency-groups"),
        "Write it with its file: requirements_from: [{file: pyproject.toml, extras: [NAME]}];"
        " `groups` likewise.",
    ),
    **dict.fromkeys(
        ("accelerator", "accelerators", "device", "devices", "gpu", "cuda", "hardware"),
        "The machine decides, by its profile. To support some profiles only: profiles: [cpu, cuda]",
    ),
    **dict.fromkeys(
        ("platforms", "platform", "arch"),
        "Remove the key: every profile states its platforms.",
    ),
    **dict.fromkeys(
        ("backend", "backends", "builder", "engine"),
        "Remove the key: --backend chooses it for each command.",
    ),
    **dict.fromkeys(
        ("base_image", "base", "image", "docker", "from_image"),
        "Remove the key: every profile states its image. Another one: ENVBUILDER_BASE_IMAGE, or"
        " base_images: at the top level.",
    ),
    **dict.fromkeys(
        ("index", "index_url", "index-url", "extra_index_url", "extra-index-url", "find_links"),
        "Remove the key, and set the index up for pip or uv. Frameworks' are the profiles' own.",
    ),
    **dict.fromkeys(
        ("torch", "pytorch", "jax", "tensorflow", "tf", "keras", "frameworks"),
        "Remove the key: the framework comes from the profile. For another than PyTorch, write at"
        " the top level: framework: jax",
    ),
}
HINTS: Hints = {
    Definition: {
        **_ENVIRONMENT_HINTS,
        "envs": "Did you mean 'environments'?",
        "extends": "A profile extends another, in profiles/NAME.yaml; a project names `profiles`.",
        "name": "Remove the key: a project is known by its folder.",
        "version": "Remove the key: the file has no version.",
        "plain_http": "Write it into config.yaml in your configuration folder: your login is sent"
        " unencrypted, which a project cannot decide.",
    },
    Environment: {
        **_ENVIRONMENT_HINTS,
        "name": "Remove the key: an environment's name is the key above it.",
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


def read(data: dict[str, Any], where: str, text: str, others: Iterable[str]) -> Definition:
    """Return the definition of a project. Raise `InvalidError` for mistakes.

    `others`: keys that the same file may hold, for suggestions.
    """
    if empty := next(_without_value(data), None):
        raise error_at(where, text, empty, "has no value", "Write a value, or remove the key.")
    top = {**{key: f"Did you mean '{key}'?" for key in others}, **HINTS[Definition]}
    definition = decode(data, Definition, where, text, {**HINTS, Definition: top})
    if relative := next(_relative_python_path(definition), None):
        problem = "has a relative path, which means another folder wherever a command is started"
        raise error_at(
            where,
            text,
            relative,
            problem,
            "Write folders of the project as python_path: [src]",
        )
    if DEFAULT in definition.environments:
        raise error_at(
            where,
            text,
            ["environments", DEFAULT],
            "this environment is what the top-level keys describe",
            "Move its keys to the top level, or give it another name.",
        )
    profiles = definition.profiles or ()
    for number, name in enumerate(profiles):
        if name in profiles[:number]:
            path = ["profiles", str(number)]
            problem = f"{shown(name)} is listed twice"
            raise error_at(where, text, path, problem, "Remove one of them.")
    return definition


def _relative_python_path(definition: Definition) -> Iterator[Sequence[str]]:
    """Yield the keys of variables that hold relative folders for Python to import from."""
    others = ((["environments", n], e) for n, e in definition.environments.items())
    for above, environment in (([], definition), *others):
        value = environment.environment.get(_PYTHONPATH, "")
        if any(not folder.startswith("/") for folder in value.split(":") if value):
            yield [*above, "environment", _PYTHONPATH]


def _without_value(data: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the paths of keys without a value that would count as keys that are left out.

    A list that was forgotten after `profiles:` must not mean all profiles.
    """
    keys = ("python", "profiles", "framework", "framework_version")
    yield from ([key] for key in keys if key in data and data[key] is None)
    environments = data.get("environments")
    for name, environment in environments.items() if isinstance(environments, dict) else ():
        if isinstance(environment, dict) and environment.get("python", "") is None:
            yield ["environments", name, "python"]
