"""Planned images in an engine: check that they exist unchanged, and run commands in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envbuilder.build import conventions, isolation
from envbuilder.build.access import NOTHING, PRELOAD, imports_from, preloading
from envbuilder.build.backends import caches, devices, foreign_programs, project_mount
from envbuilder.build.image import records
from envbuilder.build.payload import RECORD, TIMEOUT_SECONDS
from envbuilder.build.plan import names_of
from envbuilder.containers import inside
from envbuilder.containers.engine.container import Container
from envbuilder.containers.engine.interface import VOLUME_LABEL
from envbuilder.containers.oci.reference import familiar
from envbuilder.core import console, process
from envbuilder.core.errors import VerifyError
from envbuilder.core.text import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.build.access import Access
    from envbuilder.build.backends.project_mount import ProjectMount
    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.build.request import Build
    from envbuilder.containers.engine.container import Devices
    from envbuilder.containers.engine.interface import Engine, Image
    from envbuilder.profiles.lock import Target

_SCRATCH = "/tmp"  # noqa: S108 (a volume of the container, removed with it)


class DockerEnvironment:
    """A planned image in a container engine."""

    def __init__(self, build: Build, target: Target, plan: Plan, engine: Engine) -> None:
        self.profile, self.target, self.plan = build.profile, target, plan
        self.device_variables = build.device_variables
        self._engine, self._force = engine, build.request.force
        self._records = build.settings.records_dir / plan.fingerprint
        self._project = build.settings.project
        self._existing: tuple[Image, records.ImageRecord] | None = None

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build made exactly this one, under whatever name."""
        builds, ref = records.read(self._records), self.plan.artifact.ref
        refs = (ref, *(i for r in builds for i in r.ids)) if builds else ()
        image = next(filter(None, map(self._engine.image, refs)), None)
        record = next((r for r in builds if image and image.id in r.ids), None)
        self._existing = (image, record) if image and record else None
        return (
            self.plan.artifact.identified(record.digest, record.manifest_digest) if record else None
        )

    def restore_names(self) -> None:
        """Give the image those of the plan's names that it lacks, and record them."""
        assert self._existing is not None, "the image was looked up"
        image, record = self._existing
        names = names_of(self.plan)
        present = {familiar(tag) for tag in image.tags}
        lacking = [name for name in names if familiar(name) not in present]
        for name in lacking:
            self._engine.tag(image, name)
        if lacking:
            records.keep(self._records, msgspec.structs.replace(record, names=names))

    def made_by(self) -> dict[str, str]:
        """Return the programs that built the existing image (BuildKit, …) → their versions."""
        return self._existing[1].made_by if self._existing else {}

    def changed(self) -> str:
        """Return a message if the tag names another image than the one built, else empty."""
        image = self._engine.image(self.plan.artifact.ref)
        return self._change(image) if image else ""

    def _change(self, image: Image) -> str:
        built = [i for r in records.read(self._records) for i in r.ids]
        if not built or image.id in built:
            return ""
        return (
            f"{self.plan.artifact.ref} was changed after the build: it is {image.id}, and"
            f" {' or '.join(built)} was built"
        )

    def _checked_id(self) -> str:
        """Return the id of the image that was built, which is started instead of its name.

        Raises `VerifyError` if the name means another image now, or none.
        """
        image = self._engine.image(self.plan.artifact.ref)
        problem = self._change(image) if image else f"{self.plan.artifact.ref}: not in the engine"
        if image is None or problem:
            raise VerifyError(
                problem,
                "Build it again: add --rebuild to envbuilder build. To keep the present image, give"
                " it another name first.",
            )
        return image.id

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        """Run the payload in a container without network; of the folders, it can write `RECORD`.

        Raises `VerifyError` if the image is not the one that was built.
        """
        image = self._checked_id()
        paths = {name: f"/{name}" for name in folders}
        program = isolation.python(f"{conventions.PREFIX}/bin/python", isolation.CONTAINER_BYTECODE)
        inherited = self._engine.variables(image)
        variables = isolation.container_variables(inherited, conventions.variables(self.profile))
        start = isolation.container_start(variables)
        container = Container(
            image=image,
            user=conventions.USER,
            limits=self._engine.limits,
            entrypoint=inside.guarded(program, (*program, conventions.PAYLOAD, "exec", "--")),
            arguments=(*program, conventions.PAYLOAD, "--promise", start.text(), *arguments(paths)),
            variables={**variables, **self.device_variables},
            is_held=True,
            home=conventions.HOME,
            mounts={str(folders[name]): path for name, path in paths.items() if name != RECORD},
            writable={str(folders[name]): path for name, path in paths.items() if name == RECORD},
            devices=self._devices(),
        )
        return self._engine.run(container, on_line, TIMEOUT_SECONDS)

    def _devices(self) -> Devices:
        access = devices.devices(self.profile, devices.host_nodes(self.profile))
        without_runtime = bool(access.gpus) and not self._engine.knows_gpus()
        if without_runtime or (access.nodes and not self._force):
            access = devices.by_cdi(access, self.profile, self._engine.cdi_devices())
        return (
            msgspec.structs.replace(access, gpus="") if self._force and without_runtime else access
        )

    def _variables(self, access: Access, project: ProjectMount) -> dict[str, str]:
        """Return the variables, each once: of two values a process may see either."""
        environment = self.profile.environment
        folders = (project.inside(folder) for folder in access.python_path)
        variables = {
            "HOME": _SCRATCH,
            **caches.variables(environment),
            **self.device_variables,
            **imports_from(folders, environment.get("PYTHONPATH")),
            **access.variables,
        }
        return {name: value for name, value in variables.items() if name not in access.passed}

    def become(
        self, argv: Sequence[str], environ: Mapping[str, str], access: Access = NOTHING
    ) -> NoReturn:
        """Replace this process with the client's `run`: as the user, with the project."""
        del environ  # a container has its own; the client passes on what is to be passed
        container, elsewhere = self._container(argv, access)
        console.progress().note(_restrictions(container, elsewhere))
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        process.replace(self._run_command(container, terminal=terminal), {})

    def command(self, argv: Sequence[str], access: Access) -> tuple[str, ...]:
        """Return the client's command that does the same, for a program without a terminal."""
        container, _ = self._container(argv, access)
        return self._run_command(container, terminal=False)

    def _run_command(self, container: Container, *, terminal: bool) -> tuple[str, ...]:
        self._engine.make_volumes(container, {VOLUME_LABEL: str(os.getuid())})
        return self._engine.run_command(container, terminal=terminal)

    def _container(self, argv: Sequence[str], access: Access) -> tuple[Container, str]:
        """Return a command's container, and why the project is not at its own path in it."""
        wheels = {file.name for file in self.target.of_kind("wheel")}
        foreign_programs.require_lasting(argv, wheels, self.profile.name)
        cwd, socket = Path.cwd(), self._engine.socket
        folder = project_mount.root(self._project, cwd)
        project_mount.require_project(folder, socket)
        owner = folder.stat()
        user = project_mount.user(owner, os.getuid(), os.getgid())
        project = project_mount.placed(folder, cwd, user[0])
        preloaded = conventions.variables(self.profile).get(PRELOAD)
        access = preloading(access, preloaded, os.environ)
        for volume in access.volumes:
            project_mount.require_apart(volume, project, socket)
        container = Container(
            image=self._checked_id(),
            user=f"{user[0]}:{user[1]}",
            limits=self._engine.limits,
            arguments=tuple(argv),
            network=True,
            variables=self._variables(access, project),
            passed=access.passed,
            project=(str(folder), str(project.target)),
            workdir=str(project.workdir),
            ports=access.ports,
            volumes=caches.with_cache(
                access.volumes, user[0], folder if folder == self._project else None
            ),
            groups=project_mount.groups(owner, user, os.getgroups()),
            devices=self._devices(),
        )
        return container, project.reason


def _restrictions(container: Container, elsewhere: str) -> str:
    """Return the line about what a command in the container is left with."""
    limits = container.limits
    most = [gigabytes(limits.memory) + " of memory"] if limits.memory else []
    most += [f"{limits.processes} processes and threads"] if limits.processes else []
    writable = [
        volume.target
        for volume in container.volumes
        if volume.writable and not volume.target.startswith(f"{_SCRATCH}/")
    ]
    folder, target = container.project or ("", "")
    places = ", ".join((target, *writable))
    ports = ", ".join(f"{port.address} leads to port {port.inside}" for port in container.ports)
    return "; ".join(
        (
            f"container: user {container.user}, without capabilities or setuid programs",
            f"only {places} and {_SCRATCH} can be written",
            *([f"{folder} is at {target}: {elsewhere}"] if elsewhere else []),
            *([ports] if ports else []),
            *([f"at most {' and '.join(most)}"] if most else []),
        )
    )
