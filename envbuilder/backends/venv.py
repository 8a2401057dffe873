"""The venv backend: a native environment from the store, without network, one folder each.

uv unpacks the wheels into a cache inside the working folder and hard-links from there; the cache is
then removed. So every environment owns its files: editing one can reach neither a cache nor
another environment (a shared cache would install the edited file without complaint).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envbuilder import lockfile, process, render, seal
from envbuilder.errors import InvalidError, ToolError, VerifyError
from envbuilder.pack import payload_pyz, payload_sha256
from envbuilder.payload import threads
from envbuilder.plan import (
    Artifact,
    LinkFiles,
    Move,
    Plan,
    Room,
    Run,
    Seal,
    Step,
    UnpackLibraries,
    UnpackTool,
    Write,
    WritePayload,
    fingerprint,
    unpacked,
)
from envbuilder.seal import OWN
from envbuilder.verify import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.host import Host
    from envbuilder.lockfile import File, Lock, Target
    from envbuilder.options import Request
    from envbuilder.process import Completed
    from envbuilder.profiles import Profile
    from envbuilder.pythons import Interpreter
    from envbuilder.settings import Settings


def plan(
    profile: Profile, lock: Lock, target: Target, interpreter: Interpreter, settings: Settings
) -> Plan:
    """How to make the environment; pure."""
    wheels = target.of_kind("wheel")
    libraries = _named(target, profile.system_packages) if profile.preload else ()
    files = (*target.of_kind("tool"), *wheels, *libraries)
    facts = {
        "backend": "venv",
        "profile": profile.name,
        "environment": profile.environment,
        "preload": profile.preload,
        "platform": target.platform,
        "python": [interpreter.version, str(interpreter.path)],
        "files": sorted(f.sha256 for f in files),
        "payload": payload_sha256(),
    }
    digest = fingerprint(facts)
    name = f"{profile.name}-py{target.python}-{digest[:12]}"
    prefix = settings.envs_dir / name
    work = settings.envs_dir / f".{name}.partial"
    env = work / "env"
    uv = str(work / "uv")
    text = render.requirements_text(profile, lock, (target,), target.python)
    steps: list[Step] = [
        UnpackTool(what="unpack uv", file=tool(target, "uv"), name="uv", path=uv),
        LinkFiles(what="check wheels", files=wheels, folder=str(work / "wheels")),
        Write(what="write requirements", path=str(work / "requirements.txt"), text=text),
        Run(
            what=f"make a Python {interpreter.version} environment",
            argv=(
                *(uv, "venv", "--quiet", "--no-config", "--no-project", "--relocatable"),
                *("--prompt", profile.name, "--python", str(interpreter.path), str(env)),
            ),
            env={"UV_CACHE_DIR": str(work / "cache")},
        ),
        Run(
            what=f"install {len(wheels)} packages",
            argv=(
                *(uv, "pip", "install", "--quiet", "--no-config"),
                *("--offline", "--no-index", "--find-links", str(work / "wheels")),
                *("--no-deps", "--require-hashes", "--no-installer-metadata"),
                *("--cache-dir", str(work / "cache"), "--link-mode", "hardlink"),
                *("--python", str(env / "bin" / "python")),
                *("--requirements", str(work / "requirements.txt")),
            ),
        ),
    ]
    if profile.preload:
        steps.append(
            UnpackLibraries(
                what=f"unpack {', '.join(profile.preload)}",
                files=libraries,
                libraries=profile.preload,
                folder=str(env / OWN),
            )
        )
    marks = {
        "schema": 1,
        "made_by": "envbuilder",
        "profile": profile.name,
        "fingerprint": digest,
        "facts": facts,
    }
    steps += [
        WritePayload(what="add the payload", path=str(env / OWN / "payload.pyz")),
        Seal(what="write down what is in it", folder=str(env), facts=marks),
        Move(what="put in place", source=str(env), target=str(prefix)),
    ]
    return Plan(
        profile=profile.name,
        backend="venv",
        builder="uv",
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="venv", ref=str(prefix)),
        lock=lockfile.lock_digest(lock),
        workdir=str(work),
        files=files,
        steps=tuple(steps),
        room=(Room(folder=str(settings.envs_dir), bytes=unpacked(files)),),
    )


def tool(target: Target, name: str) -> File:
    """The locked build tool of a target; `InvalidError` when the lock has none."""
    for file in target.of_kind("tool"):
        if file.name == name:
            return file
    raise InvalidError(
        f"the lock names no {name} for {target.platform} with Python {target.python}",
        "Make it anew: envbuilder lock",
    )


def _named(target: Target, names: tuple[str, ...]) -> tuple[File, ...]:
    """The .debs of these names: what a library is taken from may be part of the base, too."""
    debs = (*target.of_kind("deb"), *target.base_files)
    return tuple(f for f in debs if f.name in names)


def check_tools(profile: Profile) -> None:
    """`ToolError` when the host lacks what the environment needs from it while running."""
    compilers = ("g++", "c++", "clang++")
    if "g++" in profile.system_packages and not any(process.which(c) for c in compilers):
        raise ToolError(
            f"profile '{profile.name}' needs a C++ compiler, and none of"
            f" {', '.join(compilers)} is on PATH",
            "Install one (Debian, Ubuntu: sudo apt install g++), or use --backend docker, whose"
            " image brings it.",
        )


class VenvEnvironment:
    """A planned native environment."""

    def __init__(self, profile: Profile, target: Target, made: Plan) -> None:
        self.profile, self.target, self.plan = profile, target, made
        self.prefix = Path(made.artifact.ref)

    def existing(self) -> Artifact | None:
        """The environment, if an earlier build finished it."""
        found = seal.marker(self.prefix)
        if found.get("fingerprint") != self.plan.fingerprint or "tree" not in found:
            return None
        return msgspec.structs.replace(self.plan.artifact, digest=found.get("digest"))

    def changed(self) -> str:
        """Nothing: its name is its folder's, and what is in it is looked at before it is run."""
        return ""

    def made_by(self) -> dict[str, str]:
        """uv, as the lock names it."""
        return {"uv": tool(self.target, "uv").version}

    def run_payload(
        self,
        arguments: Callable[[str], Sequence[str]],
        data: Path,
        on_line: Callable[[str], None],
    ) -> Completed:
        """Run the payload with its interpreter; `VerifyError` where it was changed."""
        payload = self.prefix / OWN / "payload.pyz"
        if not payload.is_file() or payload.read_bytes() != payload_pyz():
            raise VerifyError(
                f"{payload}: was changed after the build, so that nothing it says can be trusted",
                f"Remove {self.prefix}, and build again.",
            )
        return process.run(
            [str(self.prefix / "bin" / "python"), str(payload), *arguments(str(data))],
            env={
                **environment(self.profile, self.prefix, os.environ),
                "PYTHONPYCACHEPREFIX": self._bytecode,
                "PYTHONDONTWRITEBYTECODE": "",
            },
            timeout=TIMEOUT_SECONDS,
            on_stdout=on_line,
        )

    @cached_property
    def _bytecode(self) -> str:
        """Where bytecode goes, empty at first: that in the environment is not sealed.

        Made once the environment was found unchanged. Tuning starts the payload a hundred times,
        and neither comparing 12,000 files nor compiling torch's belongs into each start.
        """
        seal.require_unchanged(self.prefix)
        folder = tempfile.mkdtemp(prefix="envbuilder-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Become the command, found on the environment's PATH first."""
        variables = environment(self.profile, self.prefix, environ)
        program = shutil.which(argv[0], path=variables["PATH"])
        if program is None:
            raise ToolError(f"{argv[0]}: not found in the environment or on PATH")
        process.replace([program, *argv[1:]], variables)


def environment(profile: Profile, prefix: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for a command inside the environment, given the caller's own."""
    variables = dict(profile.environment)
    if profile.preload:
        ours = [str(prefix / OWN / name) for name in profile.preload]
        # The caller's own preloads stay, behind ours.
        variables["LD_PRELOAD"] = ":".join([*ours, *filter(None, [environ.get("LD_PRELOAD")])])
    if not environ.get("OMP_NUM_THREADS"):
        variables["OMP_NUM_THREADS"] = str(threads.decide(threads.fetch()))
    variables["VIRTUAL_ENV"] = str(prefix)
    variables["PATH"] = f"{prefix / 'bin'}:{environ.get('PATH', '')}"
    return variables


def prepare(
    profile: Profile, lock: Lock, host: Host, request: Request, settings: Settings
) -> VenvEnvironment:
    """Find an interpreter and plan; `ToolError` (exit 4) where one or a compiler is missing."""
    from envbuilder import pythons

    platform = host.platform
    locked = lockfile.pythons(lock, platform, profile.python.default)
    if not locked or (request.python and request.python not in locked):
        lockfile.select(lock, str(platform), request.python or profile.python.default)
    check_tools(profile)
    interpreter = pythons.find(request.python, locked, host.machine)
    minor = ".".join(interpreter.version.split(".")[:2])
    target = lockfile.select(lock, str(platform), minor)
    return VenvEnvironment(profile, target, plan(profile, lock, target, interpreter, settings))
