"""Planned images in an engine: check that they exist unchanged, and run commands in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from envbuilder.build import conventions, isolation
from envbuilder.build.backends import devices, foreign_programs
from envbuilder.build.image import records
from envbuilder.build.payload import TIMEOUT_SECONDS
from envbuilder.containers.engine.container import Container
from envbuilder.core import process
from envbuilder.core.errors import InvalidError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.containers.engine.container import Devices
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target
    from envbuilder.profiles.profile import Profile


class DockerEnvironment:
    """A planned image in a container engine."""

    device_variables: Mapping[str, str] = MappingProxyType({})
    """Variables that choose the GPUs of this machine; set by the workflow."""

    def __init__(
        self,
        profile: Profile,
        target: Target,
        plan: Plan,
        engine: Engine,
        settings: Settings,
        *,
        force: bool,
    ) -> None:
        self.profile, self.target, self.plan = profile, target, plan
        self._engine, self._force = engine, force
        self._records = settings.records_dir / plan.fingerprint

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build made exactly this one."""
        record = self._record()
        if record is None:
            return None
        return self.plan.artifact.identified(record.digest, record.manifest_digest)

    def made_by(self) -> dict[str, str]:
        """Return the programs that built the image (BuildKit, Buildah, …) → their versions."""
        record = self._record()
        return record.made_by if record else {}

    def changed(self) -> str:
        """Return a message if the tag names another image than the one built, else empty."""
        image = self._engine.image(self.plan.artifact.ref)
        builds = records.read(self._records)
        built = [i for r in builds for i in r.ids]
        if image is None or not built or image.id in built:
            return ""
        return (
            f"{self.plan.artifact.ref} was changed after the build: it is {image.id}, and"
            f" {' or '.join(built)} was built"
        )

    def _record(self) -> records.ImageRecord | None:
        image = self._engine.image(self.plan.artifact.ref)
        builds = records.read(self._records) if image else ()
        return next((r for r in builds if image and image.id in r.ids), None)

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        """Run the payload in a container without network; the folders are mounted read-only.

        Raises `VerifyError` if the image is not the one that was built.
        """
        changed = self.changed()
        if changed:
            raise VerifyError(
                changed,
                "Build it again: add --rebuild to envbuilder build. To keep the present image, give"
                " it another name first.",
            )

        paths = {name: f"/{name}" for name in folders}
        program = isolation.python(f"{conventions.PREFIX}/bin/python", isolation.CONTAINER_BYTECODE)
        inherited = self._engine.variables(self.plan.artifact.ref)
        variables = isolation.container_variables(inherited, conventions.variables(self.profile))
        start = isolation.container_start(variables)
        container = Container(
            image=self.plan.artifact.ref,
            entrypoint=(*program, conventions.PAYLOAD, "exec", "--"),
            arguments=(*program, conventions.PAYLOAD, "--promise", start.text(), *arguments(paths)),
            variables={**variables, **self.device_variables},
            home=conventions.HOME,
            home_owner=conventions.ID,
            mounts={str(folder): paths[name] for name, folder in folders.items()},
            devices=self._devices(),
        )
        return self._engine.run(container, on_line, TIMEOUT_SECONDS)

    def _devices(self) -> Devices:
        access = devices.devices(self.profile, devices.host_nodes(self.profile))
        if self._force and access.gpus and not self._engine.knows_gpus():
            return msgspec.structs.replace(access, gpus="")
        return access

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Replace this process with the client's `run`: as the user, with the working folder."""
        del environ  # a container has its own
        wheels = {file.name for file in self.target.of_kind("wheel")}
        foreign_programs.in_image(argv, wheels, self.profile.name)
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        flags = self._engine.run_flags(self._devices())
        if self._engine.rootless:
            flags += ("--userns", "keep-id")  # otherwise the container's root owns the folder
        folder = str(Path.cwd())
        if "," in folder:
            raise InvalidError(f"{folder}: a folder with ',' in its name cannot be mounted")
        process.replace(
            [
                # The image was built locally; one of that name in a registry is another.
                *(*self._engine.command, "run", "--rm", "--pull=never", "--interactive"),
                *(["--tty"] if terminal else []),
                *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"),
                *("--mount", f"type=bind,source={folder},target={conventions.WORK}"),
                *("--workdir", conventions.WORK),
                *flags,
                *(f"--env={name}={value}" for name, value in self.device_variables.items()),
                *(self.plan.artifact.ref, *argv),
            ],
            {},
        )
