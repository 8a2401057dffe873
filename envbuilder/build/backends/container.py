"""Planned images in an engine: check that they exist unchanged, and run commands in them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.build import conventions as facts
from envbuilder.build import isolation
from envbuilder.build.backends import devices, foreign_programs
from envbuilder.build.image import records as images
from envbuilder.build.payload import TIMEOUT_SECONDS
from envbuilder.containers.engine import client as engine
from envbuilder.containers.engine import podman
from envbuilder.containers.engine import run as containers
from envbuilder.core import process
from envbuilder.core.errors import InvalidError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target
    from envbuilder.profiles.profile import Profile


class DockerEnvironment:
    """A planned image in a container engine."""

    def __init__(
        self,
        profile: Profile,
        target: Target,
        made: Plan,
        client: Any,
        target_engine: engine.Engine,
        settings: Settings,
        *,
        force: bool,
    ) -> None:
        self.profile, self.target, self.plan = profile, target, made
        self._client, self._engine, self._force = client, target_engine, force
        self._records = settings.records_dir / made.fingerprint

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build made exactly this one."""
        record = self._record()
        if record is None:
            return None
        return msgspec.structs.replace(self.plan.artifact, digest=record.digest)

    def made_by(self) -> dict[str, str]:
        """Return the programs that built the image (BuildKit, Buildah, …) → their versions."""
        record = self._record()
        return record.made_by if record else {}

    def changed(self) -> str:
        """Return a message if the tag names another image than the one built, else empty."""
        found = engine.image(self._client, self.plan.artifact.ref)
        records = images.read(self._records)
        built = [i for r in records for i in r.ids]
        if found is None or not built or found.id in built:
            return ""
        return (
            f"{self.plan.artifact.ref} was changed after the build: it is {found.id}, and"
            f" {' or '.join(built)} was built"
        )

    def _record(self) -> images.ImageRecord | None:
        found = engine.image(self._client, self.plan.artifact.ref)
        records = images.read(self._records) if found else ()
        return next((r for r in records if found and found.id in r.ids), None)

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        """Run the payload in a container without network; the folders are mounted read-only.

        Raises `VerifyError` if the image is not the one that was built.
        """
        import time

        changed = self.changed()
        if changed:
            raise VerifyError(
                changed,
                "Build it anew: add --rebuild to envbuilder build. To keep what is there now, give"
                " it another name first.",
            )

        seen = {name: f"/{name}" for name in folders}
        mounts = {str(folder): seen[name] for name, folder in folders.items()}
        program = isolation.python(f"{facts.PREFIX}/bin/python", isolation.CONTAINER_BYTECODE)
        variables = isolation.container_variables(self._inherited(), facts.variables(self.profile))
        start = isolation.container_start(variables)
        entrypoint = [*program, facts.PAYLOAD, "exec", "--"]
        argv = [*program, facts.PAYLOAD, "--promise", start.text(), *arguments(seen)]
        if isinstance(self._client, podman.Podman):
            flags = [
                *("--network", "none", "--read-only", "--tmpfs", "/tmp:exec"),  # noqa: S108
                *("--tmpfs", f"{facts.HOME}:mode=1777"),
                *(f"--mount={devices.bound(*mount)}" for mount in mounts.items()),
                *devices.cli_options(self._device_options(), self._engine),
                # Podman's own settings could add the host's variables and proxies.
                *("--env-host=false", "--http-proxy=false", "--workdir", facts.HOME),
                *(f"--env={name}={value}" for name, value in variables.items()),
                *("--entrypoint", json.dumps(entrypoint)),
            ]
            ref = self.plan.artifact.ref
            return self._client.run(flags, ref, argv, on_line, TIMEOUT_SECONDS)
        options = {
            "image": self.plan.artifact.ref,
            "entrypoint": entrypoint,
            "command": argv,
            "environment": variables,
            "use_config_proxy": False,
            "working_dir": facts.HOME,
            "network_mode": "none",
            "read_only": True,
            "tmpfs": {"/tmp": "exec", facts.HOME: f"uid={facts.ID},gid={facts.ID}"},  # noqa: S108
            **devices.sdk_options(self._device_options(), mounts),
        }
        started = time.monotonic()
        code, out, err, expired = containers.run(self._client, options, on_line, TIMEOUT_SECONDS)
        return process.Completed(
            argv=tuple(argv),
            returncode=code,
            stdout=out,
            stderr=err,
            seconds=time.monotonic() - started,
            timed_out=expired,
        )

    def _inherited(self) -> Sequence[str]:
        """Return the image's variables, as `NAME=VALUE`."""
        return engine.variables(self._client, self.plan.artifact.ref)

    def _device_options(self) -> dict[str, Any]:
        options = devices.device_options(self.profile, devices.host_nodes(self.profile))
        if self._force and options["gpus"] and not self._knows_gpus():
            options["gpus"] = ""
        return options

    def _knows_gpus(self) -> bool:
        if self._engine.client == "podman":
            return podman.has_gpu_specification()
        return "nvidia" in (self._client.info().get("Runtimes") or {})

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Replace this process with the client's `run`: as the user, with the working folder."""
        del environ  # a container has its own
        wheels = {file.name for file in self.target.of_kind("wheel")}
        foreign_programs.in_image(argv, wheels, self.profile.name)
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        flags = devices.cli_options(self._device_options(), self._engine)
        if self._engine.rootless:
            flags += ("--userns", "keep-id")  # otherwise the container's root owns the folder
        here = str(Path.cwd())
        if "," in here:
            raise InvalidError(f"{here}: a folder with ',' in its name cannot be mounted")
        process.replace(
            [
                # It was built here; an image of that name in a registry is another one.
                *(*self._engine.command, "run", "--rm", "--pull=never", "--interactive"),
                *(["--tty"] if terminal else []),
                *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"),
                *("--mount", f"type=bind,source={here},target={facts.WORK}"),
                *("--workdir", facts.WORK),
                *flags,
                *(self.plan.artifact.ref, *argv),
            ],
            {},
        )
