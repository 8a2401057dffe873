"""The conda backend: Python and system libraries from conda packages, with wheels in a venv on top.

Wheels are never installed into the conda prefix itself, because that would remove or overwrite
files that conda owns. Instead, they are installed into a venv inside the prefix. The prefix's own
interpreter makes the venv while the prefix and the venv are still in the working folder. Both are
then adapted to their final location. (The image builder works differently: it gives uv a program
that answers like the image's interpreter, which is possible for Linux only.) If the prefix's
interpreter cannot run, the build fails before anything is moved into place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.builds import variables
from envbuilder.builds.backends import foreign_programs, integrity
from envbuilder.builds.backends.venv import (
    NativeEnvironment,
    check_tools,
    environment_room,
    folders_for,
    last_steps,
    preload_paths,
    preload_steps,
    preloaded,
    refused_programs,
    rehomed,
    wheel_steps,
)
from envbuilder.builds.payload import compiler_sha256, payload_sha256
from envbuilder.builds.plan import Artifact, LinkFiles, Plan, Step, fingerprint, tool_versions
from envbuilder.builds.variables import Place
from envbuilder.core import process
from envbuilder.core.console import progress
from envbuilder.core.errors import Hint, HostError, InvalidError, ToolError
from envbuilder.packages.conda import lock as conda_locks, prefixes
from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import File, Target, lock_digest, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path, PurePath

    from envbuilder.builds.request import Locked

NO_USER_SITE = {"PYTHONNOUSERSITE": "1"}
"""Variables that hide the packages in the user's home folder from Python. Otherwise, an environment
that can use conda's libraries would also import those packages, and would prefer them. A profile
may override these variables."""
VENV = "venv"
"""Path of the venv that contains the wheels, relative to the prefix."""
_INTERPRETER = frozenset({"python", "pip", "setuptools", "wheel"})
_COMPILERS = ("gxx", "cxx-compiler", "clangxx", "compilers")
# Sourced in a function, where "$@" is empty: activate.d scripts of packages may read it.
_STATED = "_envbuilder_stated"
_INSIDE = f"""\
_activate() {{ . "$0"; }}
_envbuilder_names=${_STATED}
unset {_STATED}
for _name in $_envbuilder_names; do eval "_stated_$_name=\\$$_name"; done
_activate || exit
for _name in $_envbuilder_names; do eval "export $_name=\\$_stated_$_name"; done
exec "$@\""""
"""Shell script that activates the environment and runs a command. In between, it restores those of
the user's variables that activation scripts changed. The variables' names consist of letters,
digits and underscores."""


def plan(
    build: Locked,
    target: Target,
    conda_lock: conda_locks.Lock,
    conda: conda_locks.Target,
    *,
    rattler: str,
    channels: Mapping[str, str],
) -> Plan:
    """Plan the environment without side effects.

    `target` comes from the wheels' lock, and `conda` from the conda lock. `rattler` is the version
    of py-rattler, which affects the package records that are written to the prefix. `channels` maps
    the symbolic names of channels to public URLs.
    """
    profile = build.profile
    wheels = target.of_kind("wheel")
    tool = build.lock.tool(target.platform)
    libraries = preloaded(profile, target)
    contents = (*(p.as_file for p in conda.packages), *wheels, *libraries)
    files = (*contents, tool)
    version = next(p.version for p in conda.packages if p.name == "python")
    variables = {**NO_USER_SITE, **profile.environment}
    facts = {
        "backend": "conda",
        "profile": profile.name,
        "environment": variables,
        "preload": profile.preload,
        "platform": target.platform,
        "python": version,
        "files": sorted(f.sha256 for f in contents),
        "uv": tool.version,
        "payload": payload_sha256(),
        "bytecode": compiler_sha256(),
        "refused": refused_programs(profile),
        "activation": prefixes.templates_sha256(),
        "py-rattler": rattler,
    }
    digest = fingerprint(facts)
    folders = folders_for(build.settings, f"{profile.name}-conda-py{target.python}-{digest[:12]}")
    prefix = folders.prefix
    steps: tuple[Step, ...] = (
        *_conda_steps(conda, channels, folders.work, prefix),
        *_venv_steps(build, target, conda, version, folders.work, prefix),
        *preload_steps(profile, libraries, folders.env),
        conda_locks.WriteActivation(
            what="write activation scripts",
            env=str(folders.env),
            prefix=str(prefix),
            venv=str(prefix / VENV),
            variables=variables,
            preload=preload_paths(profile, prefix),
        ),
        *last_steps(profile, folders, digest, facts, prefix=str(prefix)),
    )
    return Plan(
        profile=profile.name,
        backend="conda",
        builder="py-rattler",
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="conda", ref=str(prefix)),
        lock=lock_digest(build.lock),
        conda_lock=lock_digest(conda_lock),
        workdir=str(folders.work),
        files=files,
        steps=steps,
        room=(environment_room(build.settings, files),),
        signatures=build.library.signed,
    )


def _conda_steps(
    conda: conda_locks.Target, channels: Mapping[str, str], work: Path, prefix: Path
) -> tuple[Step, ...]:
    """Return the steps that install the conda packages.

    The archives of each channel and platform go into a separate folder, because file names are only
    unique within a channel and platform.
    """
    by_folder: dict[str, list[File]] = {}
    for package in conda.packages:
        folder = f"{package.channel}/{package.subdir}"
        by_folder.setdefault(folder, []).append(package.as_file)
    checks = []
    for folder, packages in sorted(by_folder.items()):
        checks.append(
            LinkFiles(
                what=f"check conda packages of {folder}",
                files=tuple(packages),
                folder=str(work / "packages" / folder),
            )
        )
    return (
        *checks,
        conda_locks.InstallConda(
            what=f"install {len(conda.packages)} conda packages",
            packages=conda.packages,
            subdir=conda.subdir,
            folder=str(work / "packages"),
            channels={p.channel: channels[p.channel] for p in conda.packages},
            env=str(work / "env"),
            prefix=str(prefix),
            cache=str(work / "conda-cache"),
        ),
    )


def _venv_steps(
    build: Locked,
    target: Target,
    conda: conda_locks.Target,
    version: str,
    work: Path,
    prefix: Path,
) -> tuple[Step, ...]:
    """Return the steps that create a venv with the new Python and install the wheels into it."""
    env = work / "env"
    python = f"bin/python{target.python}"
    # A Python library among the conda packages, which the wheels' venv must see.
    system_site = any(
        package.name not in _INTERPRETER and "python" in package.dependencies
        for package in conda.packages
    )
    return (
        *wheel_steps(
            build,
            target,
            work=work,
            env=env / VENV,
            python=str(env / python),
            version=version,
            system_site=system_site,
        ),
        rehomed(
            build,
            env / VENV,
            home=prefix / "bin",
            python=f"../../{python}",
            version=version,
            system_site=system_site,
        ),
    )


class CondaEnvironment(NativeEnvironment):
    """A planned environment of conda packages.

    Each command is run by bash, which first sources the activation script, just as an activated
    shell does. Conda packages add their own activation scripts (compilers set CXX), so `run` has
    the same effect as activating the environment.
    """

    @property
    def bin_folders(self) -> tuple[str, ...]:
        """The folders that contain programs, relative to the prefix.

        The venv's folder comes first.
        """
        return (f"{VENV}/bin", "bin")

    def existing(self) -> Artifact | None:
        """Return the environment if an earlier build finished it at this location, else None."""
        moved = integrity.marker(self.prefix).get("prefix") != str(self.prefix)
        return None if moved else super().existing()

    def made_by(self) -> dict[str, str]:
        """Return the versions of the locked uv and the installed py-rattler."""
        return {**tool_versions(self.plan), "py-rattler": prefixes.require_rattler()}

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a bash command that activates the environment and runs `argv`."""
        return [_bash(), "-c", _INSIDE, str(self.prefix / prefixes.SCRIPT), *argv]

    def place(self, programs: Iterable[PurePath] = ()) -> Place:
        """Return the variables that the environment sets in addition to its activation script.

        The activation script itself prepends the environment's program folders to `PATH`.
        """
        path = tuple(map(str, (self.prefix / foreign_programs.FOLDER, *programs)))
        return Place(first={variables.PATH: path}, sets_profile=True)

    def after_activation(self, names: Iterable[str]) -> dict[str, str]:
        """Return a variable that tells the activation command which variables to restore.

        `names` contains the names of the variables to restore. If it is empty, return an empty
        dictionary.
        """
        text = " ".join(names)
        return {_STATED: text} if text else {}


def _bash() -> str:
    """Return the path of bash. Raise `ToolError` if it is missing."""
    path = process.which("bash")
    if path is None:
        raise ToolError(
            "bash is not on PATH, but conda environments need it for activation",
            "Install bash, or use --backend venv.",
        )
    return path


def prepare(build: Locked) -> CondaEnvironment:
    """Read the conda lock, check the host and plan the environment.

    Raise `InvalidError` (exit 2) if there is no usable lock, `HostError` (exit 3) if the host lacks
    features that the lock requires, and `ToolError` (exit 4) if py-rattler, bash or a compiler is
    missing.
    """
    profile = build.profile
    stored = conda_locks.find_for_use(profile.name, build.library)
    conda_lock = conda_locks.require_usable(profile, stored)
    platform = str(build.host.platform)
    python = build.request.python or profile.python.default
    conda = conda_locks.select(conda_lock, platform, python)
    target = select(build.lock, platform, python)
    _check_folder(build.settings.envs_dir)
    _check_host(conda, build)
    rattler = prefixes.require_rattler()
    _bash()
    if not any(p.name.startswith(_COMPILERS) for p in conda.packages):
        check_tools(profile)
    upstreams = indexes.upstreams()
    channels: dict[str, str] = {}
    for package in conda.packages:
        name = package.channel
        # A user's own URL may contain a token and must not be recorded.
        channels[name] = upstreams[name].url if name in upstreams else f"https://{name}.invalid"
    planned = plan(build, target, conda_lock, conda, rattler=rattler, channels=channels)
    return CondaEnvironment(build, target, planned)


def _check_folder(folder: Path) -> None:
    """Raise `InvalidError` if shell scripts in packages would misinterpret the folder's path.

    A space is allowed, because the path of the application data folder on macOS contains one.
    """
    if re.search(r"[:\"'$`\\\x00-\x1f]", str(folder)):
        raise InvalidError(
            f"{folder}: shell scripts in conda environments would misinterpret this path",
            "Set ENVBUILDER_DATA_DIR to a folder whose path has no colon, quotes, dollar sign or"
            " backslash.",
        )


def _check_host(conda: conda_locks.Target, build: Locked) -> None:
    """Raise `HostError` if an environment from the lock cannot work on the host.

    Print all other findings as warnings.
    """
    for finding in conda_locks.findings(conda, build.host):
        decides = finding.level == "impossible" or (finding.level == "no" and build.running)
        if decides and not build.request.force:
            raise HostError(
                f"the conda lock does not fit this host: {finding.text}",
                Hint(
                    "The profile's conda.virtual_packages lists the properties that the lock needs."
                    " To show this machine's properties",
                    ("detect",),
                ),
            )
        progress().note(f"warning: {finding.text}")
