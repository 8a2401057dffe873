"""The conda backend: Python and system libraries from conda packages, wheels in a venv on top.

The wheels never go into the conda prefix: who installs there removes or overwrites what conda owns.
They lie in a virtual environment inside of the prefix, made by the prefix's own interpreter while
both are still in the working folder, and then told where both will be. The image builder's way,
a program that answers uv as that interpreter would, knows Linux only; here the real one is at hand,
and an interpreter that cannot be run here is found out before anything is put in place.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from envbuilder.build.backends import foreign_programs
from envbuilder.build.backends import integrity as seal
from envbuilder.build.backends.native import (
    NativeEnvironment,
    check_tools,
    folders_for,
    last_steps,
    own_variables,
    preload_paths,
    preload_steps,
    preloaded,
    refused_programs,
    room,
    tool_versions,
    wheel_steps,
)
from envbuilder.build.payload import payload_sha256
from envbuilder.build.plan import Artifact, LinkFiles, Plan, Step, fingerprint
from envbuilder.core import process
from envbuilder.core.console import progress
from envbuilder.core.errors import HostError, InvalidError, ToolError
from envbuilder.packages.conda import activation, records
from envbuilder.packages.conda import lock as conda_lockfile
from envbuilder.packages.conda import prefix as prefix_records
from envbuilder.packages.conda import virtual_packages as machine
from envbuilder.packages.conda.steps import InstallConda, Rehome, WriteActivation
from envbuilder.packages.python import indexes
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.build.request import Request
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.packages.conda.lock import Package
    from envbuilder.profiles.lock import Lock, Target
    from envbuilder.profiles.profile import Profile

ALONE = {"PYTHONNOUSERSITE": "1"}
"""An environment that sees conda's libraries would see those in the user's home, too, and before
them. A profile may say otherwise."""
VENV = "venv"
"""Below a prefix: the virtual environment of the wheels."""
_INTERPRETER = frozenset({"python", "pip", "setuptools", "wheel"})
_COMPILERS = ("gxx", "cxx-compiler", "clangxx", "compilers")
# In a function, where "$@" is empty: what packages have in activate.d may look at it.
_INSIDE = '_activate() { . "$0"; }; _activate && exec "$@"'


def plan(
    profile: Profile,
    lock: Lock,
    target: Target,
    conda_lock: conda_lockfile.Lock,
    conda: conda_lockfile.Target,
    *,
    rattler: str,
    channels: Mapping[str, str],
    settings: Settings,
) -> Plan:
    """How to make the environment; pure.

    `target` is of the wheels' lock, `conda` of the conda lock. `rattler` is py-rattler's version,
    which decides what prefixes say of themselves; `channels` are public URLs by symbolic name.
    """
    wheels = target.of_kind("wheel") if profile.torch_from_wheels("conda") else ()
    tools = (lock.tool(target.platform),) if wheels else ()
    libraries = preloaded(profile, target)
    contents = (*(p.as_file for p in conda.packages), *wheels, *libraries)
    files = (*contents, *tools)
    version = next(p.version for p in conda.packages if p.name == "python")
    variables = {**ALONE, **profile.environment}
    facts = {
        "backend": "conda",
        "profile": profile.name,
        "environment": variables,
        "preload": profile.preload,
        "platform": target.platform,
        "python": version,
        "files": sorted(f.sha256 for f in contents),
        "uv": tools[0].version if tools else "",
        "payload": payload_sha256(),
        "refused": refused_programs(profile),
        "activation": activation.templates_sha256(),
        "py-rattler": rattler,
    }
    digest = fingerprint(facts)
    name = f"{profile.name}-conda-py{target.python}-{digest[:12]}"
    places = folders_for(settings, name)
    prefix, work, env = places.prefix, places.work, places.env
    steps: tuple[Step, ...] = (
        *_conda_steps(conda, channels, work, prefix),
        *(_venv_steps(profile, lock, target, conda, version, work, prefix) if wheels else ()),
        *preload_steps(profile, libraries, env),
        WriteActivation(
            what="write activation scripts",
            env=str(env),
            prefix=str(prefix),
            venv=str(prefix / VENV) if wheels else "",
            variables=variables,
            preload=preload_paths(profile, prefix),
        ),
        *last_steps(profile, places, digest, facts, prefix=str(prefix)),
    )
    return Plan(
        profile=profile.name,
        backend="conda",
        builder="py-rattler",
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="conda", ref=str(prefix)),
        lock=lockfile.lock_digest(lock) if profile.takes_lock("conda") else "",
        conda_lock=lockfile.lock_digest(conda_lock),
        workdir=str(work),
        files=files,
        steps=steps,
        room=(room(settings, files),),
    )


def _conda_steps(
    conda: conda_lockfile.Target, channels: Mapping[str, str], work: Path, prefix: Path
) -> tuple[Step, ...]:
    """Archives, each in the folder of its channel and platform: there no two have one name."""
    places: dict[str, list[Package]] = {}
    for package in conda.packages:
        places.setdefault(f"{package.channel}/{package.subdir}", []).append(package)
    return (
        *(
            LinkFiles(
                what=f"check conda packages of {place}",
                files=tuple(p.as_file for p in found),
                folder=str(work / "packages" / place),
            )
            for place, found in sorted(places.items())
        ),
        InstallConda(
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
    profile: Profile,
    lock: Lock,
    target: Target,
    conda: conda_lockfile.Target,
    version: str,
    work: Path,
    prefix: Path,
) -> tuple[Step, ...]:
    """The wheels, in an environment of the interpreter that has just been installed."""
    env, python = work / "env", f"bin/python{target.python}"
    system_site = brings_libraries(conda)
    return (
        *wheel_steps(
            *(profile, lock, target),
            work=work,
            env=env / VENV,
            python=str(env / python),
            version=version,
            system_site=system_site,
        ),
        Rehome(
            what="let it find its interpreter",
            env=str(env / VENV),
            settings={
                "home": str(prefix / "bin"),
                "implementation": "CPython",
                "uv": lock.tool(target.platform).version,
                "version_info": version,
                "include-system-site-packages": str(system_site).lower(),
                "relocatable": "true",
                "prompt": profile.name,
            },
            python=f"../../{python}",
        ),
    )


def brings_libraries(conda: conda_lockfile.Target) -> bool:
    """Whether conda packages are Python libraries, which the wheels' environment must see."""
    return any(
        package.name not in _INTERPRETER and any(d.split()[0] == "python" for d in package.depends)
        for package in conda.packages
    )


class CondaEnvironment(NativeEnvironment):
    """A planned environment of conda packages.

    Commands are run by bash, after it has sourced what a person would: packages have scripts of
    their own there (compilers set CXX), and what `run` shows is so what activation gives.
    """

    @property
    def bin_folders(self) -> tuple[str, ...]:
        """The wheels' programs go before conda's."""
        on_top = any(isinstance(step, Rehome) for step in self.plan.steps)
        return (f"{VENV}/bin", "bin") if on_top else ("bin",)

    def existing(self) -> Artifact | None:
        """The environment, if an earlier build finished it in this very place."""
        moved = seal.marker(self.prefix).get("prefix") != str(self.prefix)
        return None if moved else super().existing()

    def made_by(self) -> dict[str, str]:
        """uv, as the lock names it, and py-rattler."""
        return {**tool_versions(self.plan), "py-rattler": records.require_rattler()}

    def inside(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """bash, which activates the environment and becomes the command."""
        script = str(self.prefix / activation.SCRIPT)
        # Activation puts the environment's own programs before these.
        refused = str(self.prefix / foreign_programs.FOLDER)
        path = os.pathsep.join(filter(None, (refused, environ.get("PATH"))))
        variables = {**own_variables(environ), "PATH": path}
        return [_bash(), "-c", _INSIDE, script, *argv], variables

    def owner(self, path: str) -> str:
        """The conda package that a path belongs to."""
        return prefix_records.owner(self.prefix, path)


def _bash() -> str:
    """bash; `ToolError` where it is missing."""
    found = process.which("bash")
    if found is None:
        raise ToolError(
            "bash is not on PATH, and conda environments are activated by it",
            "Install bash, or use --backend venv.",
        )
    return found


def prepare(
    profile: Profile, lock: Lock, host: Host, request: Request, settings: Settings
) -> CondaEnvironment:
    """Read the conda lock, check the host and plan.

    `InvalidError` (exit 2) without a lock that may be used, `HostError` (3) where the host lacks
    what it takes for granted, `ToolError` (4) where py-rattler, bash or a compiler is missing.
    """
    folders = profiles.search_path(settings.project, settings.config_dir)
    found = conda_lockfile.find(profile.name, folders)
    conda_lock = conda_lockfile.require_usable(profile, found)
    platform, python = str(host.platform), request.python or profile.python.default
    conda = conda_lockfile.select(conda_lock, platform, python)
    target = (
        lockfile.select(lock, platform, python)
        if profile.takes_lock("conda")
        else lockfile.Target(platform=conda.platform, python=conda.python, base=None, files=())
    )
    _check_place(settings.envs_dir)
    _check_host(conda, host, request)
    rattler = records.require_rattler()
    _bash()
    if not any(p.name.startswith(_COMPILERS) for p in conda.packages):
        check_tools(profile)
    known = indexes.upstreams()
    channels = {
        # A user's own URL may hold a token: it is not written down.
        name: known[name].url if name in known else f"https://{name}.invalid"
        for name in sorted({p.channel for p in conda.packages})
    }
    made = plan(
        *(profile, lock, target, conda_lock, conda),
        rattler=rattler,
        channels=channels,
        settings=settings,
    )
    return CondaEnvironment(profile, target, made)


def _check_place(folder: Path) -> None:
    """`InvalidError` for a folder whose name scripts of packages would take for something else.

    A blank is allowed: the folder that macOS has for programs' data has one.
    """
    if re.search(r"[:\"'$`\\\x00-\x1f]", str(folder)):
        raise InvalidError(
            f"{folder}: conda environments name their place in shell scripts, where this name"
            " would mean something else",
            "Set ENVBUILDER_DATA_DIR to a folder without colon, quotes, dollar sign or backslash.",
        )


def _check_host(conda: conda_lockfile.Target, host: Host, request: Request) -> None:
    """`HostError` where nothing of the lock could work on the host; the rest is noted."""
    for finding in machine.findings(conda, host):
        decides = finding.level == "impossible" or (finding.level == "no" and request.to_run)
        if decides and not request.force:
            raise HostError(
                f"the conda lock does not fit this host: {finding.text}",
                "What it was locked for is in the profile's conda.virtual_packages. To see this"
                " machine: envbuilder detect",
            )
        progress().note(f"warning: {finding.text}")
