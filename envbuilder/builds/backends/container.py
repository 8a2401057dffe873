"""Images in an engine: check that they exist and are unchanged, and run commands in them.

Commands run as the current user. They can read and write the project's folder, which has the same
path as on the host if possible.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePath, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import access, conventions, isolation, records, variables
from envbuilder.builds.access import NOTHING, Access, Runner
from envbuilder.builds.backends import devices, foreign_programs
from envbuilder.builds.payload import RECORD, TIMEOUT_SECONDS
from envbuilder.builds.plan import Artifact, Plan, names_of
from envbuilder.builds.variables import Place, Variable
from envbuilder.containers import inside
from envbuilder.containers.engine.container import Container, Devices, Volume
from envbuilder.containers.engine.interface import VOLUME_LABEL, Engine, Image
from envbuilder.containers.oci.reference import familiar
from envbuilder.core import console, files, process
from envbuilder.core.errors import Hint, InvalidError, VerifyError
from envbuilder.core.text import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.builds.request import Locked
    from envbuilder.profiles.lock import Target


_SOCKETS = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"), Path("/run/user"))
_LISTS = (variables.PYTHONPATH, variables.PRELOAD)
_ROOTS_HOME = PurePosixPath("/root")
_SCRATCH = "/tmp"  # noqa: S108 (a volume of the container, removed with it)
_CACHE = "/tmp/.cache"  # noqa: S108 (where programs look whose home is /tmp)
_CACHES = MappingProxyType(
    {
        "XDG_CACHE_HOME": _CACHE,
        "HF_HOME": f"{_CACHE}/huggingface",
        "TORCH_HOME": f"{_CACHE}/torch",
        "TRITON_CACHE_DIR": f"{_CACHE}/triton",
    }
)
"""Variables that tell programs where to keep their caches, regardless of HOME. Programs execute
files from their caches, such as compiled kernels and code from hubs. Therefore each project has its
own persistent volume for caches."""


class ProjectMount(Struct, frozen=True, kw_only=True):
    """A folder on this machine, and its path in a container."""

    folder: Path
    target: PurePosixPath
    workdir: PurePosixPath
    """The working directory of the command, as a path in the container."""
    reason: str = ""
    """The reason why the folder's path differs from its path on the host. Empty if it does not
    differ."""

    def inside(
        self, paths: Iterable[PurePath], own_folders: Iterable[Volume] = ()
    ) -> tuple[PurePosixPath, ...]:
        """Translate host paths inside this folder or `own_folders` to container paths.

        Paths outside these folders are omitted.
        """
        seen: dict[PurePath, PurePosixPath] = {self.folder: self.target}
        for volume in own_folders:
            seen[Path(volume.source)] = PurePosixPath(volume.target)
        mapped = []
        for path in paths:
            for folder, target in seen.items():
                if path.is_relative_to(folder):
                    mapped.append(target / path.relative_to(folder))
        return tuple(mapped)


def project_folder(project: Path | None, cwd: Path) -> Path:
    """Return the folder that a command sees: the project if it contains `cwd`, otherwise `cwd`.

    The home folder is not treated as a project, because it usually contains several projects.
    """
    inside = project is not None and cwd.is_relative_to(project) and not _is_home(project)
    return project if project and inside else cwd


def _is_home(folder: Path) -> bool:
    try:
        return folder.samefile(Path.home())
    except (OSError, RuntimeError):  # RuntimeError: this user has none
        return False


def project_mount(folder: Path, cwd: Path, uid: int) -> ProjectMount:
    """Decide how to mount a folder in a container that runs as the user with the id `uid`.

    The folder is mounted at its host path if possible. `cwd` is the current folder, which is either
    the mounted folder or a folder below it.
    """
    target = PurePosixPath(folder)
    reason = ""
    if hidden := access.covered(target):
        reason = f"at its own path it would cover {hidden}"
    elif target.is_relative_to(_ROOTS_HOME) and uid != 0:
        reason = f"only root can enter {_ROOTS_HOME} in the image"
    elif not str(folder).isprintable():
        reason = "its path has characters that cannot be printed"
    if reason:
        target = PurePosixPath(conventions.WORK)
    return ProjectMount(
        folder=folder, target=target, workdir=target / cwd.relative_to(folder), reason=reason
    )


def user_in(folder: os.stat_result, uid: int, gid: int) -> tuple[int, int]:
    """Return the uid and gid with which a command runs in a container.

    These are the user's ids or, if the user is root, the ids of the folder's owner. If the owner is
    root too, the command runs as root but without capabilities, since only root can write to such a
    folder.
    """
    return (uid, gid) if uid else (folder.st_uid, folder.st_gid)


def groups_in(
    folder: os.stat_result, user: tuple[int, int], groups: Sequence[int]
) -> tuple[int, ...]:
    """Return a tuple with the folder's group if the user needs this group to write to the folder.

    Otherwise, return an empty tuple.
    """
    uid, gid = user
    shared = uid not in {0, folder.st_uid} and folder.st_gid != gid and folder.st_gid in groups
    return (folder.st_gid,) if shared else ()


def require_project(folder: Path, socket: Path | None) -> None:
    """Raise `InvalidError` if a folder to be mounted contains the engine's socket.

    With access to the socket, the container could control the engine.
    """
    if _holds_socket(folder, socket):
        raise InvalidError(
            f"{folder} contains a container engine's socket and cannot be the project",
            "Change to your project's folder, and run the command again.",
        )


def require_apart(volume: Volume, project: ProjectMount, socket: Path | None) -> None:
    """Raise `InvalidError` if a volume contains the engine's socket or conflicts with the project.

    A volume must not cover the project. It may be mounted at a folder inside the project if that
    folder exists.
    """
    if volume.is_folder and _holds_socket(Path(volume.source), socket):
        raise InvalidError(
            f"{volume.source} contains a container engine's socket and cannot be a volume",
            "Name only the folder that the command needs.",
        )
    target = PurePosixPath(volume.target)
    if project.target.is_relative_to(target):
        raise InvalidError(
            f"{volume.target} would cover the project, which is at {project.target} in the"
            " container",
            "Choose another path, such as /data.",
        )
    if target.is_relative_to(project.target):
        folder = project.folder / target.relative_to(project.target)
        if not folder.is_dir():
            # The engine would create it in the project, as root.
            raise InvalidError(
                f"{volume.target}: no such folder in the project",
                f"Create it first: mkdir -p {process.quoted([str(folder)])}",
            )


def _holds_socket(folder: Path, socket: Path | None) -> bool:
    sockets = (*_SOCKETS, *((socket.resolve(),) if socket else ()))
    return any(path.is_relative_to(folder) for path in sockets)


class DockerEnvironment:
    """A planned image in a container engine."""

    def __init__(self, build: Locked, target: Target, plan: Plan, engine: Engine) -> None:
        self.profile = build.profile
        self.target = target
        self.plan = plan
        self.device_variables = build.device_variables
        self._engine = engine
        self._force = build.request.force
        self._records = build.settings.records_dir / plan.fingerprint
        self._project = build.settings.project
        self._existing: tuple[Image, records.ImageRecord] | None = None
        self._names = names_of(plan)
        if not build.request.only_tag:
            self._names += (records.claim(plan.fingerprint, build.settings),)

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build of the same plan made it, else None.

        The image is found even if it now has another name.
        """
        builds = records.read(self._records)
        refs = [self.plan.artifact.ref]
        for record in builds:
            refs += record.ids
        image = next(filter(None, map(self._engine.image, refs if builds else ())), None)
        self._existing = None
        for record in builds:
            if image and image.id in record.ids:
                self._existing = (image, record)
                return self.plan.artifact.identified(record.digest, record.manifest_digest)
        return None

    def restore_names(self) -> None:
        """Tag the existing image with the names that it lacks, and record the names of the image.

        These are the names in the plan, and the name by which this data folder claims the image.
        """
        assert self._existing is not None, "the image was looked up"
        image, record = self._existing
        present = set(map(familiar, image.tags))
        lacking = [name for name in self._names if familiar(name) not in present]
        for name in lacking:
            self._engine.tag(image, name)
        ref = self.plan.artifact.ref
        if record.ref != ref or not {*self._names} <= {*record.names}:
            records.keep(self._records, replace(record, ref=ref, names=self._names))

    def altered(self) -> str:
        """Return an empty string, because images in an engine cannot be changed in place."""
        return ""

    def made_by(self) -> dict[str, str]:
        """Return the versions of the programs that built the existing image, by name."""
        return self._existing[1].made_by if self._existing else {}

    def changed(self) -> str:
        """Return a message if the tag no longer refers to the image that was built, else ""."""
        image = self._engine.image(self.plan.artifact.ref)
        return self._change(image) if image else ""

    def _change(self, image: Image) -> str:
        built: list[str] = []
        for record in records.read(self._records):
            built += record.ids
        if not built or image.id in built:
            return ""
        return (
            f"{self.plan.artifact.ref} was changed after the build: expected"
            f" {' or '.join(built)}, found {image.id}"
        )

    def _checked_id(self) -> str:
        """Return the id of the built image. Containers are started by this id rather than by name.

        Raise `VerifyError` if the name now refers to another image, or to none.
        """
        image = self._engine.image(self.plan.artifact.ref)
        problem = (
            self._change(image)
            if image
            else f"{self.plan.artifact.ref}: the engine does not have this image"
        )
        if image is None or problem:
            raise VerifyError(
                problem,
                Hint(
                    "To keep the image with this name, give it another name first. Then build"
                    " again",
                    ("build", "--rebuild", "--backend", self.plan.backend),
                ),
            )
        return image.id

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        """Run the payload in a container that has no network and can write only to `RECORD`.

        Return the completed process. Raise `VerifyError` if the image is not the one that was
        built.
        """
        image = self._checked_id()
        paths = {name: f"/{name}" for name in folders}
        mounts = {str(folder): paths[name] for name, folder in folders.items()}
        writable = {}
        if RECORD in folders:
            record = str(folders[RECORD])
            writable[record] = mounts.pop(record)
        program = isolation.python(f"{conventions.PREFIX}/bin/python")
        inherited = self._engine.variables(image)
        settings = isolation.container_variables(inherited, conventions.variables(self.profile))
        start = isolation.container_start(settings)
        if threads := os.environ.get(variables.THREADS):
            settings[variables.THREADS] = threads
        container = Container(
            image=image,
            user=conventions.USER,
            limits=self._engine.limits,
            entrypoint=inside.guarded(program, (*program, conventions.PAYLOAD, "exec", "--")),
            arguments=(*program, conventions.PAYLOAD, "--promise", start.text(), *arguments(paths)),
            variables={**settings, **self.device_variables},
            is_held=True,
            home=conventions.HOME,
            mounts=mounts,
            writable=writable,
            devices=self._devices(),
        )
        return self._engine.run(container, on_line, TIMEOUT_SECONDS)

    def _devices(self) -> Devices:
        access = devices.devices(self.profile, devices.host_nodes(self.profile))
        without_runtime = bool(access.gpus) and not self._engine.knows_gpus()
        if without_runtime or (access.nodes and not self._force):
            access = devices.by_cdi(access, self.profile, self._engine.cdi_devices())
        if self._force and without_runtime:
            access = replace(access, gpus="")
        return access

    def _variables(self, access: Access, project: ProjectMount, image: str) -> dict[str, Variable]:
        """Return the variables to set for a command in the container.

        Each variable is set only once. If it were passed to the engine twice, either value might
        take effect.
        """
        caller = {name: os.environ.get(name, "") for name in access.passed}
        folders = project.inside(access.python_path, access.own_folders)
        first = {variables.PYTHONPATH: list(map(str, folders))}
        if variables.PRELOAD in {*access.variables, *access.passed}:
            preloaded = conventions.variables(self.profile).get(variables.PRELOAD, "")
            first[variables.PRELOAD] = preloaded.split(":")
        if programs := project.inside(access.programs, access.own_folders):
            inherited = dict(pair.split("=", 1) for pair in self._engine.variables(image))
            rest = inherited.get(variables.PATH, "").removeprefix(f"{conventions.PATH}:")
            first[variables.PATH] = [conventions.PATH, *map(str, programs), rest]
        environment = Place(given={"HOME": _SCRATCH, **_CACHES}, first=first, sets_profile=True)
        return variables.of_command(
            self.profile, environment, self.device_variables, access, {**caller, variables.PATH: ""}
        )

    def become(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        access: Access = NOTHING,
        start: Runner | None = None,
    ) -> int:
        """Replace this process with the engine client, which runs a command in the image.

        The command runs as the current user and has access to the project.
        """
        del environ  # a container has its own; the client passes on what is to be passed
        container, elsewhere = self._container(argv, access)
        if not access.is_read:
            console.progress().note(_restrictions(container, elsewhere))
        terminal = sys.stdin.isatty() and sys.stdout.isatty() and not access.is_read
        python = isolation.python(conventions.ENTRYPOINT[0])
        container = replace(
            container, entrypoint=inside.accompanied(python, conventions.ENTRYPOINT)
        )
        return (start or process.exec_program)(
            self._engine.foreground(container, terminal=terminal), {}
        )

    def command(self, argv: Sequence[str], access: Access) -> tuple[str, ...]:
        """Return the command line that `become` would run if there were no terminal."""
        container, _ = self._container(argv, access)
        return self._engine.run_command(container, terminal=False)

    def _container(self, argv: Sequence[str], access: Access) -> tuple[Container, str]:
        """Return the container for a command, and why the project is not mounted at its host path.

        The reason is empty if the project is mounted at its host path.
        """
        wheels = {file.name for file in self.target.of_kind("wheel")}
        foreign_programs.require_lasting(argv, wheels, self.profile.name)
        cwd = Path.cwd()
        socket = self._engine.socket
        folder = project_folder(self._project, cwd)
        require_project(folder, socket)
        owner = folder.stat()
        user = user_in(owner, os.getuid(), os.getgid())
        project = project_mount(folder, cwd, user[0])
        for volume in access.volumes:
            require_apart(volume, project, socket)
        image = self._checked_id()
        decided = self._variables(access, project, image)
        # The entrypoint counts the threads that the container may use.
        if variables.THREADS in decided and decided[variables.THREADS].source == variables.MACHINE:
            del decided[variables.THREADS]
        of_image = conventions.variables(self.profile).items()
        variables.report({n: Variable(value, "the image") for n, value in of_image} | decided)
        passed = tuple(name for name in access.passed if name not in _LISTS)
        container = Container(
            image=image,
            user=f"{user[0]}:{user[1]}",
            limits=self._engine.limits,
            arguments=tuple(argv),
            network=True,
            variables={n: variable.value for n, variable in decided.items() if n not in passed},
            passed=passed,
            project=(str(folder), str(project.target)),
            workdir=str(project.workdir),
            ports=access.ports,
            volumes=(
                *with_cache(access.volumes, user[0], folder if folder == self._project else None),
                *access.own_folders,
            ),
            groups=groups_in(owner, user, os.getgroups()),
            devices=self._devices(),
        )
        self._engine.make_volumes(container, {VOLUME_LABEL: str(os.getuid())})
        return container, project.reason


def _restrictions(container: Container, elsewhere: str) -> str:
    """Describe in one line how a command in the container is restricted."""
    folder, target = container.project or ("", "")
    writable = [volume.target for volume in container.volumes if volume.writable]
    places = [target, *(path for path in writable if not path.startswith(f"{_SCRATCH}/"))]
    parts = [
        f"container: user {container.user}, without capabilities or setuid programs",
        f"only {', '.join(places)} and {_SCRATCH} are writable",
    ]
    if elsewhere:
        parts.append(f"{folder} is at {target}: {elsewhere}")
    if container.ports:
        ports = [f"{port.address} is forwarded to port {port.inside}" for port in container.ports]
        parts.append(", ".join(ports))
    limits = container.limits
    most = [gigabytes(limits.memory) + " of memory"] if limits.memory else []
    if limits.processes:
        most.append(f"{limits.processes} processes and threads")
    if most:
        parts.append(f"at most {' and '.join(most)}")
    return "; ".join(parts)


def with_cache(volumes: Iterable[Volume], uid: int, project: Path | None) -> tuple[Volume, ...]:
    """Add the project's cache to the volumes, unless another volume is mounted at its path.

    Outside projects, all of a user's commands share one cache.
    """
    volumes = tuple(volumes)
    if any(volume.target == _CACHE for volume in volumes):
        return volumes
    ending = f"-{files.folder_identity(project)[:12]}" if project else ""
    return (*volumes, Volume(source=f"envbuilder-cache-{uid}{ending}", target=_CACHE))
