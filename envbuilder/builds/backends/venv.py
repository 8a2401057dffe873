"""Native environments: the venv backend, and the code that it shares with the conda backend.

Each environment is a folder that is built from the store without network access. The unchanged
files of a wheel are unpacked once and shared (`builds.image.unpacked`). uv installs all other
files. uv's cache is removed together with the working folder and is never shared. If the cache were
shared and a file was edited in one environment, uv would install the edited file into the next one.
The module is long because two backends share its rules.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import isolation, shared, variables
from envbuilder.builds.access import NOTHING, Access, Runner
from envbuilder.builds.backends import foreign_programs, in_use, integrity
from envbuilder.builds.payload import TIMEOUT_SECONDS, compiler_sha256, payload_pyz, payload_sha256
from envbuilder.builds.plan import (
    Artifact,
    Move,
    Plan,
    RunUv,
    Seal,
    ShareWheels,
    Step,
    UnpackLibraries,
    UnpackPython,
    UnpackTool,
    UnpackWheels,
    WritePayload,
    WritePrograms,
    fingerprint,
    install_wheels,
    tool_versions,
)
from envbuilder.builds.request import Environment, Locked
from envbuilder.builds.variables import Place, Variable
from envbuilder.core import process
from envbuilder.core.console import progress
from envbuilder.core.errors import NOT_FOUND, CommandError, ToolError, VerifyError
from envbuilder.core.resources import OWN
from envbuilder.host import interpreters
from envbuilder.packages.conda.lock import Rehome
from envbuilder.packages.interpreters import program, require_interpreter
from envbuilder.packages.store import Room, unpacked
from envbuilder.payload.start import Start, guarded
from envbuilder.profiles.lock import File, Target, lock_digest, pythons, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile


_FOLDER = "python"
"""Name of the folder that contains the unpacked interpreter."""
_NEEDED_MEMORY = 256 << 20
"""Number of bytes that must be free in an in-memory folder. Links and bytecode need a few MiB."""


class Folders(Struct, frozen=True):
    """The folder in which an environment is built, and the environment's final location."""

    prefix: Path
    work: Path
    """The build's working folder, next to the prefix."""

    @property
    def env(self) -> Path:
        """The folder in which the environment is built, until it is moved to the prefix."""
        return self.work / "env"


def folders_for(settings: Settings, name: str) -> Folders:
    """Return the working folder and the final location of the environment `name`."""
    return Folders(settings.envs_dir / name, settings.envs_dir / f".{name}.partial")


def last_steps(
    profile: Profile,
    folders: Folders,
    digest: str,
    facts: Mapping[str, Any],
    *,
    base_python: str = "",
    **more: str,
) -> tuple[Step, ...]:
    """Return the last steps of a build, which complete the environment and move it into place.

    `facts` and `more` are written to the environment's marker. `base_python` is the path of the
    interpreter on which the environment is based, or empty if the environment contains that
    interpreter.
    """
    marks = {
        "schema": 1,
        "made_by": "envbuilder",
        "profile": profile.name,
        "fingerprint": digest,
        **more,
        "facts": facts,
    }
    env = folders.env
    return (
        WritePayload(what="add the payload", path=str(env / OWN / "payload.pyz")),
        WritePrograms(
            what="add stubs for programs of other environments",
            folder=str(env / foreign_programs.FOLDER),
            names=foreign_programs.REFUSED,
            text=foreign_programs.stub(profile.name),
        ),
        Seal(
            what="write the integrity manifest",
            folder=str(env),
            facts=marks,
            base_python=base_python,
        ),
        Move(what="move it into place", source=str(env), target=str(folders.prefix)),
    )


def environment_room(settings: Settings, files: Iterable[File]) -> Room:
    """Return the minimum disk space that an environment with these files needs.

    Wheels that are already unpacked need no additional space.
    """
    new = [f for f in files if not (settings.unpacked_dir / f.sha256 / "files").is_dir()]
    return Room(folder=str(settings.envs_dir), bytes=unpacked(new))


def preloaded(profile: Profile, target: Target) -> tuple[File, ...]:
    """Return the .deb files that contain the preloaded libraries.

    These include .deb files of the base image.
    """
    debs = (*target.of_kind("deb"), *target.base_files)
    return tuple(f for f in debs if profile.preload and f.name in profile.system_packages)


def check_tools(profile: Profile) -> None:
    """Raise `ToolError` if the host lacks a program that the environment needs at run time."""
    compilers = ("g++", "c++", "clang++")
    if "g++" in profile.system_packages and not any(map(process.which, compilers)):
        raise ToolError(
            f"profile '{profile.name}' needs a C++ compiler, but none of {', '.join(compilers)}"
            " is on PATH",
            "Install one (Debian, Ubuntu: sudo apt install g++), or use --backend docker, whose"
            " image contains one.",
        )


def wheel_steps(
    build: Locked,
    target: Target,
    *,
    work: Path,
    env: Path,
    python: str,
    version: str,
    system_site: bool = False,
) -> tuple[Step, ...]:
    """Return the steps that make a venv with `python` and install the locked wheels into it.

    `env` is the folder of the venv. With `system_site`, the venv can also import the interpreter's
    own packages.
    """
    wheels = target.of_kind("wheel")
    tool = build.lock.tool(target.platform)
    uv = str(work / "uv")
    cache = str(work / "cache")
    scratch = str(work / "scratch")
    folder = str(work / "wheels")
    requirements = str(work / "requirements.txt")
    minor = version.rpartition(".")[0]
    # A rebuild trusts nothing that is there.
    is_new = build.request.rebuild
    unpacked = str(work / "unpacked" if is_new else build.settings.unpacked_dir)
    options = [
        *(["--system-site-packages"] if system_site else []),
        "--prompt",
        build.profile.name,
        "--python",
        python,
    ]
    # An interpreter in the working folder moves with the environment.
    facts = {"uv": tool.sha256, "python": version, "options": options}
    is_outside = not is_new and not Path(python).is_relative_to(work)
    return (
        UnpackWheels(what=f"unpack {len(wheels)} packages", files=wheels, unpacked=unpacked),
        ShareWheels(
            what=f"install {len(wheels)} packages for Python {version}",
            files=wheels,
            unpacked=unpacked,
            installed=f"installed-{minor}-{tool.sha256[:12]}",
            identity=fingerprint(facts) if is_outside else "",
            # A native environment is built on the platform that it is for.
            unpack_uv=UnpackTool(
                what="unpack uv", file=tool, name="uv", path=uv, unpacked=unpacked
            ),
            make_venv=RunUv(
                what=f"make a Python {version} environment",
                argv=(
                    uv,
                    "venv",
                    "--quiet",
                    "--no-config",
                    "--no-project",
                    "--relocatable",
                    *options,
                    scratch,
                ),
                env={"UV_CACHE_DIR": cache},
            ),
            install=install_wheels(
                f"install {len(wheels)} packages",
                uv=uv,
                wheels=folder,
                cache=cache,
                python=f"{scratch}/bin/python",
                requirements=requirements,
            ),
            scratch=scratch,
            wheels=folder,
            requirements=requirements,
            env=str(work / "env"),
            venv=str(env),
            python=python,
            version=version,
        ),
    )


def preload_steps(profile: Profile, libraries: tuple[File, ...], env: Path) -> tuple[Step, ...]:
    """Return the steps that unpack the preloaded libraries into an environment."""
    if not profile.preload:
        return ()
    return (
        UnpackLibraries(
            what=f"unpack {', '.join(profile.preload)}",
            files=libraries,
            libraries=profile.preload,
            folder=str(env / OWN),
        ),
    )


def preload_paths(profile: Profile, prefix: Path) -> tuple[str, ...]:
    """Return the paths of the preloaded libraries in a finished environment."""
    return tuple(str(prefix / OWN / name) for name in profile.preload)


def refused_programs(profile: Profile) -> list[Any]:
    """Return facts for the fingerprint about the stubs that replace programs such as pip."""
    return [foreign_programs.REFUSED, foreign_programs.stub(profile.name)]


class NativeEnvironment(Environment):
    """A planned environment in a folder on this machine.

    Unless a subclass says otherwise, the environment is a venv.
    """

    def __init__(self, build: Locked, target: Target, plan: Plan) -> None:
        self.profile = build.profile
        self.target = target
        self.plan = plan
        self.device_variables = build.device_variables
        self.prefix = Path(plan.artifact.ref)
        self._hold: in_use.Hold | None = None

    @property
    def bin_folders(self) -> tuple[str, ...]:
        """The folders that contain programs, relative to the prefix, in order of precedence."""
        return ("bin",)

    @property
    def python(self) -> str:
        """The path of the environment's interpreter, relative to the prefix."""
        return f"{self.bin_folders[0]}/python"

    def existing(self) -> Artifact | None:
        """Return the environment if an earlier build completed it and no file is missing.

        Otherwise, return None. An environment that was returned cannot be removed as long as this
        `NativeEnvironment` object exists.
        """
        self._hold = None
        held = in_use.hold(self.prefix)
        metadata = integrity.marker(self.prefix)
        if metadata.get("fingerprint") != self.plan.fingerprint:
            return None
        if held is None or integrity.damage(self.prefix, metadata):
            return None
        self._hold = held
        return replace(self.plan.artifact, digest=metadata.get("digest"))

    def stay_in_use(self) -> None:
        """Keep the environment safe from removal after another program replaces this process."""
        if self._hold:
            self._hold.pass_on()

    def changed(self) -> str:
        """Return a message if files of the environment are missing, else an empty string."""
        return integrity.damage(self.prefix, integrity.marker(self.prefix))

    def altered(self) -> str:
        """Return a message if files shared with other environments were changed in place.

        Otherwise, return an empty string.
        """
        self._hold = None  # such an environment is replaced
        return integrity.altered(self.prefix)

    def made_by(self) -> dict[str, str]:
        """Return a dictionary that maps the name of the locked tool, uv, to its version."""
        return tool_versions(self.plan)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs `argv` inside the environment."""
        return list(argv)

    def place(self, programs: Iterable[PurePath] = ()) -> Place:
        """Return the variables that the environment sets for its commands.

        `programs` are folders that contain the project's commands.
        """
        return place(self.profile, self.prefix, programs)

    def variables(
        self, environ: Mapping[str, str], access: Access = NOTHING
    ) -> dict[str, Variable]:
        """Return the variables to set for a command in the environment.

        `environ` contains the caller's variables.
        """
        base = self.place(access.programs)
        base = replace(
            base, first={**base.first, variables.PYTHONPATH: list(map(str, access.python_path))}
        )
        return variables.of_command(self.profile, base, self.device_variables, access, environ)

    def after_activation(self, names: Iterable[str]) -> dict[str, str]:
        """Return variables that tell the activation scripts which variables in `names` to preserve.

        By default, no activation script changes any variable, so the dictionary is empty.
        """
        del names  # by default, no script sets any
        return {}

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        """Run the payload with the environment's interpreter.

        Raise `VerifyError` if the payload was changed, or if the environment was changed before or
        during the run.
        """
        payload = self.prefix / OWN / "payload.pyz"
        if not payload.is_file() or payload.read_bytes() != payload_pyz():
            raise VerifyError(
                f"{payload} was changed after the build, so its report cannot be trusted",
                f"Remove {self.prefix}, and build the environment again.",
            )
        # Checks the environment before anything in it runs, its activation included.
        scratch, before = self._scratch
        executable = str(self.prefix / self.python)
        bytecode = str(scratch / "bytecode")
        base = {**isolation.payload_environment(os.environ), **self.device_variables}
        set_values = {name: variable.value for name, variable in self.variables(base).items()}
        start = Start(
            as_found=False,
            prefix=str(self.prefix),
            executable=executable,
            bytecode=bytecode,
            variables=guarded({**base, **set_values, **self.profile.environment}),
        )
        paths = {name: str(folder.absolute()) for name, folder in folders.items()}
        program = (*isolation.python(executable, bytecode), str(payload), "--promise", start.text())
        done = process.run(
            self.command([*program, *arguments(paths)]),
            env=set_values,
            base=base,
            cwd=scratch / "work",
            timeout=TIMEOUT_SECONDS,
            on_stdout=on_line,
        )
        integrity.require_untouched(self.prefix, self.python, before)
        return done

    @cached_property
    def _scratch(self) -> tuple[Path, integrity.State]:
        """A temporary folder for the payload, and the current state of the environment.

        The folder contains the build's bytecode, and the payload uses no other bytecode. Computing
        this property checks that the environment has not changed since its build. The property is
        computed only once, because tuning starts the payload a hundred times and should not hash
        12,000 files each time.
        """
        before = integrity.require_unchanged(self.prefix, self.python)
        for note in isolation.notes(os.environ):
            progress().note(f"note: {note}")
        folder = tempfile.mkdtemp(prefix="envbuilder-", dir=_memory())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        # The payload works in an empty folder: a file in the user's could shadow a module.
        (Path(folder) / "work").mkdir()
        shared.link_bytecode(self.prefix, Path(folder, "bytecode"))
        return Path(folder), before

    def become(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        access: Access = NOTHING,
        start: Runner | None = None,
    ) -> int:
        """Replace this process with a command, looking up the command in the environment first.

        Raise `CommandError` if the command is not found, and `ToolError` if the command belongs to
        a Python outside the environment.
        """
        folders = [self.prefix / name for name in self.bin_folders]
        folders += map(Path, access.programs)
        decided = self.variables(environ, access)
        path = os.pathsep.join((*map(str, folders), decided[variables.PATH].value))
        program = shutil.which(argv[0], path=path)
        foreign_programs.require_own(argv, program, folders, self.profile.name)
        if program is None:
            if unusable := shutil.which(argv[0], os.F_OK, path):
                process.require_runnable(Path(unusable))
            raise CommandError(
                f"{argv[0]}: not found in the environment or on PATH", run_code=NOT_FOUND
            )
        variables.report(decided)
        values = {name: variable.value for name, variable in decided.items()}
        # A script that activates puts the profile's libraries before others.
        is_last = {variables.PATH, *([variables.PRELOAD] if values.get(variables.PRELOAD) else ())}
        names = {*access.passed, *access.variables, variables.PYTHONPATH} & values.keys()
        self.stay_in_use()
        command = self.command([program, *argv[1:]])
        return (start or process.exec_program)(
            command, {**values, **self.after_activation(sorted(names - is_last))}
        )


def _memory() -> str | None:
    """Return an in-memory folder for temporary files, or None to use the default location.

    Memory is preferred because on ext4, creating thousands of links takes seconds while other
    programs are writing.
    """
    folder = "/dev/shm"  # noqa: S108 (a private folder is created in it)
    if "TMPDIR" in os.environ or not os.access(folder, os.W_OK | os.X_OK):
        return None
    return folder if shutil.disk_usage(folder).free > _NEEDED_MEMORY else None


def place(profile: Profile, prefix: Path, programs: Iterable[PurePath] = ()) -> Place:
    """Return the variables that a venv sets for its commands.

    `programs` are folders that contain the project's commands.
    """
    refused = prefix / foreign_programs.FOLDER
    first = {variables.PATH: (*map(str, (prefix / "bin", refused, *programs)),)}
    first[variables.PRELOAD] = preload_paths(profile, prefix)
    return Place(given={"VIRTUAL_ENV": str(prefix)}, first=first)


def plan(build: Locked, target: Target, interpreter: interpreters.Interpreter | File) -> Plan:
    """Plan the environment, without side effects.

    `interpreter` is an interpreter on this machine, or an archive to unpack into the environment.
    """
    profile = build.profile
    libraries = preloaded(profile, target)
    uv = build.lock.tool(target.platform)
    contents = (*target.of_kind("wheel"), *libraries)
    brought = interpreter if isinstance(interpreter, File) else None
    files = (uv, *contents, *([brought] if brought else []))
    path = "" if isinstance(interpreter, File) else str(interpreter.path)
    facts = {
        "backend": "venv",
        "profile": profile.name,
        "environment": profile.environment,
        "preload": profile.preload,
        "platform": target.platform,
        "python": [interpreter.version, brought.sha256 if brought else path],
        "files": sorted(f.sha256 for f in contents),
        "uv": uv.version,
        "payload": payload_sha256(),
        "bytecode": compiler_sha256(),
        "refused": refused_programs(profile),
    }
    digest = fingerprint(facts)
    folders = folders_for(build.settings, f"{profile.name}-py{target.python}-{digest[:12]}")
    unpacked = folders.work / _FOLDER
    steps: list[Step] = []
    if brought:
        what = f"unpack Python {brought.version}"
        steps.append(UnpackPython(what=what, file=brought, folder=str(unpacked)))
    steps += wheel_steps(
        build,
        target,
        work=folders.work,
        env=folders.env,
        python=path or str(unpacked / program(target.python)),
        version=interpreter.version,
    )
    if brought:
        steps += home_steps(build, brought, folders)
    steps += preload_steps(profile, libraries, folders.env)
    steps += last_steps(profile, folders, digest, facts, base_python=path)
    return Plan(
        profile=profile.name,
        backend="venv",
        builder="uv",
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="venv", ref=str(folders.prefix)),
        lock=lock_digest(build.lock),
        workdir=str(folders.work),
        files=files,
        steps=tuple(steps),
        room=(environment_room(build.settings, files),),
        signatures=build.library.signed,
    )


def prepare(build: Locked) -> NativeEnvironment:
    """Find an interpreter and plan the environment.

    The locked interpreter is used if the profile requires it, or if this machine has no interpreter
    of a locked version. Facts about an interpreter are cached until its files change. A rebuild
    ignores the cache and queries the interpreter again. Raise `ToolError` (exit 4) if the
    interpreter or a compiler is missing.
    """
    profile = build.profile
    lock = build.lock
    host = build.host
    request = build.request
    platform = host.platform
    locked = pythons(lock, platform, profile.python.default)
    if not locked or (request.python and request.python not in locked):
        select(lock, str(platform), request.python or profile.python.default)
    check_tools(profile)
    answers = interpreters.Answers(build.settings.interpreters_dir)

    def chosen() -> tuple[Target, interpreters.Interpreter | File]:
        target = select(lock, str(platform), request.python or locked[0])
        if profile.python.managed:
            return target, require_interpreter(profile, target)
        try:
            interpreter = interpreters.find(request.python, locked, host.machine, answers=answers)
        except ToolError:
            if not target.interpreter:
                raise
            return target, target.interpreter
        return select(lock, str(platform), interpreter.version.rpartition(".")[0]), interpreter

    if request.rebuild:
        answers.forget()
    target, interpreter = chosen()
    if not request.dry_run:
        answers.save()
    return NativeEnvironment(build, target, plan(build, target, interpreter))


# --- an interpreter of its own: a locked archive, unpacked beside the venv, then a part of it


def home_steps(build: Locked, interpreter: File, folders: Folders) -> tuple[Step, ...]:
    """Return the steps that move an unpacked interpreter into the environment created with it."""
    folder = f"{OWN}/{_FOLDER}"
    source = str(folders.work / _FOLDER)
    path = folders.prefix / folder / program(interpreter.version.rpartition(".")[0])
    return (
        Move(what="add its interpreter", source=source, target=str(folders.env / folder)),
        rehomed(
            build,
            folders.env,
            home=path.parent,
            # Python 3.10 and older take their own path from the link, with any `..` in it.
            python=str(path),
            version=interpreter.version,
        ),
    )


def rehomed(
    build: Locked, env: Path, *, home: Path, python: str, version: str, system_site: bool = False
) -> Rehome:
    """Return a step that sets the interpreter folder in a venv's settings to `home`.

    `home` is the folder's final location. `python` is the target of the venv's link to the
    interpreter.
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
