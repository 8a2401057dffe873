"""The venv backend: native environments built from the store, without network, a folder each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.build.backends import foreign_programs
from envbuilder.build.backends.native import (
    NativeEnvironment,
    check_tools,
    folders_for,
    last_steps,
    machine_variables,
    preload_paths,
    preload_steps,
    preloaded,
    refused_programs,
    room,
    wheel_steps,
)
from envbuilder.build.payload import payload_sha256
from envbuilder.build.plan import Artifact, Plan, Step, fingerprint
from envbuilder.profiles.lock import Lock, Target, lock_digest, pythons, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.build.request import Build
    from envbuilder.core.settings import Settings
    from envbuilder.host.interpreters import Interpreter
    from envbuilder.profiles.profile import Profile


def plan(
    profile: Profile, lock: Lock, target: Target, interpreter: Interpreter, settings: Settings
) -> Plan:
    """Return the plan of the environment; pure."""
    libraries = preloaded(profile, target)
    uv, contents = lock.tool(target.platform), (*target.of_kind("wheel"), *libraries)
    files = (uv, *contents)
    facts = {
        "backend": "venv",
        "profile": profile.name,
        "environment": profile.environment,
        "preload": profile.preload,
        "platform": target.platform,
        "python": [interpreter.version, str(interpreter.path)],
        "files": sorted(f.sha256 for f in contents),
        "uv": uv.version,
        "payload": payload_sha256(),
        "refused": refused_programs(profile),
    }
    digest = fingerprint(facts)
    folders = folders_for(settings, f"{profile.name}-py{target.python}-{digest[:12]}")
    steps: tuple[Step, ...] = (
        *wheel_steps(
            *(profile, lock, target),
            work=folders.work,
            env=folders.env,
            python=str(interpreter.path),
            version=interpreter.version,
        ),
        *preload_steps(profile, libraries, folders.env),
        *last_steps(profile, folders, digest, facts, base_python=str(interpreter.path)),
    )
    return Plan(
        profile=profile.name,
        backend="venv",
        builder="uv",
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="venv", ref=str(folders.prefix)),
        lock=lock_digest(lock),
        workdir=str(folders.work),
        files=files,
        steps=steps,
        room=(room(settings, files),),
    )


class VenvEnvironment(NativeEnvironment):
    """A planned native environment on an interpreter of the host."""

    def inside(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command itself, with the environment's variables."""
        return list(argv), environment(self.profile, self.prefix, environ)


def environment(profile: Profile, prefix: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a command inside the environment, given the caller's own."""
    variables = dict(profile.environment)
    if profile.preload:
        # The caller's own preloads are kept, after the profile's.
        inherited = filter(None, [environ.get("LD_PRELOAD")])
        variables["LD_PRELOAD"] = ":".join([*preload_paths(profile, prefix), *inherited])
    variables |= machine_variables(environ)
    variables["VIRTUAL_ENV"] = str(prefix)
    refused = prefix / foreign_programs.FOLDER
    variables["PATH"] = f"{prefix / 'bin'}:{refused}:{environ.get('PATH', '')}"
    return variables


def prepare(build: Build) -> VenvEnvironment:
    """Find an interpreter and plan; `ToolError` (exit 4) if it or a compiler is missing.

    An interpreter that an earlier command ran is not run again to find an environment that exists.
    Nothing is built from what is only remembered.
    """
    from envbuilder.host import interpreters
    from envbuilder.host.interpreters import Answers

    profile, lock, host, request = build.profile, build.lock, build.host, build.request
    platform = host.platform
    locked = pythons(lock, platform, profile.python.default)
    if not locked or (request.python and request.python not in locked):
        select(lock, str(platform), request.python or profile.python.default)
    check_tools(profile)
    answers = Answers(build.settings.interpreters_dir)

    def planned() -> VenvEnvironment:
        interpreter = interpreters.find(request.python, locked, host.machine, answers=answers)
        target = select(lock, str(platform), ".".join(interpreter.version.split(".")[:2]))
        planned = plan(profile, lock, target, interpreter, build.settings)
        return VenvEnvironment(build, target, planned)

    product = planned()
    if answers.used and (request.rebuild or product.existing() is None):
        answers.forget()
        product = planned()
    if not request.dry_run:
        answers.save()
    return product
