"""Describe a container to run, and convert it to flags for `docker run` and `podman run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

_MIB = 1 << 20
_GIB = 1 << 30
_PROCESSES = 4096
_PROCESSES_PER_CPU = 128
"""Number of processes and threads to allow per CPU. Each DataLoader worker and each rank may start
several of them per CPU."""
LOOPBACK = "127.0.0.1"


class Limits(Struct, frozen=True, kw_only=True):
    """Limits on the memory and the processes of a container. 0 means no limit."""

    memory: int = 0
    """Maximum memory in bytes, including the page cache and files in memory, but not swap."""
    processes: int = 0
    """Maximum number of processes and threads."""


class Devices(Struct, frozen=True, kw_only=True):
    """The devices, groups and folders that a container needs to use its GPUs."""

    gpus: str = ""
    """NVIDIA GPUs, as a value for `--gpus`. Empty if there are none."""
    cdi: tuple[str, ...] = ()
    """Names of devices in the Container Device Interface (CDI), such as `amd.com/gpu=all`."""
    nodes: tuple[str, ...] = ()
    """Paths of device files, or of folders that contain device files."""
    groups: tuple[int, ...] = ()
    """Ids of the host's groups that may open the device files."""
    volumes: tuple[str, ...] = ()
    """Folders of the host that are mounted read-only at the same path in the container."""
    shm_size: str


class Port(Struct, frozen=True, kw_only=True):
    """A port of the host that is forwarded to a port of the container."""

    host: str = LOOPBACK
    """The host's address on which the port listens."""
    outside: int
    inside: int

    @property
    def address(self) -> str:
        """The host's address and port, in the form in which they appear in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.outside}"


class Volume(Struct, frozen=True, kw_only=True):
    """A folder of the host or a volume of the engine, mounted in a container at `target`."""

    source: str
    """Absolute path of a folder on the host, or name of a volume in the engine."""
    target: str
    writable: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether the source is a folder of the host."""
        return self.source.startswith("/")


class Container(Struct, frozen=True, kw_only=True):
    """A container to run, with a read-only root filesystem and without capabilities.

    Every engine drops all capabilities, sets `no-new-privileges`, gives the container its own IPC
    namespace, disables core dumps, and keeps its default seccomp and AppArmor profiles.
    """

    image: str
    """Id of the image. A name is not used, because it may refer to another image by now."""
    user: str
    """User and group in the container, as `uid:gid`."""
    limits: Limits
    entrypoint: tuple[str, ...] = ()
    """Entry point; empty to use the image's own entry point."""
    arguments: tuple[str, ...] = ()
    platform: str = ""
    """Platform; empty to use the image's own platform."""
    network: bool = False
    is_held: bool = False
    """Whether to keep the command's stdin open as long as this process lives. The command ends when
    its stdin is closed."""
    variables: Mapping[str, str] = {}
    home: str = ""
    """Path of the user's home and working folder, which is on a file system in memory.

    /tmp is then also in memory. If `home` is empty, the container has neither of these folders in
    memory.
    """
    mounts: Mapping[str, str] = {}
    """Path of a folder on the host → its path in the container, where it is read-only."""
    writable: Mapping[str, str] = {}
    """Path of a folder on the host → its path in the container, where it is writable."""
    project: tuple[str, str] | None = None
    """A folder on the host that the container may write to, and the folder's path in the container.
    If it is not None, /tmp is a writable volume, and `user` is a user of the host."""
    workdir: str = ""
    """Working folder in the container; empty to use the project or, without a project, `home`."""
    ports: tuple[Port, ...] = ()
    volumes: tuple[Volume, ...] = ()
    passed: tuple[str, ...] = ()
    """Names of the variables to pass on to the container, with their values in the engine's client.
    Like `project`, `ports` and `volumes`, this field is for commands that run in the foreground."""
    groups: tuple[int, ...] = ()
    """Ids of the host's groups that the user needs in order to access the project."""
    devices: Devices | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The image, command and arguments, which follow the flags of the `run` command."""
        return (self.image, *self.entrypoint[1:], *self.arguments)

    @property
    def shares_files(self) -> bool:
        """Whether the container can access files or devices of the host."""
        folders = any(volume.is_folder for volume in self.volumes)
        return bool(self.mounts or self.writable or self.project or self.devices or folders)


def limits(memory: int, cpus: int) -> Limits:
    """Return limits that keep a machine with `memory` bytes and `cpus` CPUs responsive.

    Containers may use all memory except for a sixteenth (at least 256 MiB, at most 4 GiB). If the
    engine cannot limit memory, pass 0 for `memory`. If the engine cannot limit the number of
    processes, pass 0 for `cpus`.
    """
    reserve = min(max(memory // 16, 256 * _MIB), 4 * _GIB)
    return Limits(
        memory=max(memory - reserve, memory // 2),
        processes=max(_PROCESSES, _PROCESSES_PER_CPU * cpus) if cpus else 0,
    )


def bound(source: str, target: str, *, writable: bool = False) -> str:
    """Return a value for `--mount` that mounts a folder of the host at `target`."""
    return mount(Volume(source=source, target=target, writable=writable))


def mount(volume: Volume) -> str:
    """Return a value for `--mount` that mounts a volume.

    The value is quoted as a line of CSV, because clients parse it as such.
    """
    kind = "bind" if volume.is_folder else "volume"
    fields = (f"type={kind}", f"source={volume.source}", f"target={volume.target}")
    return ",".join(map(_quoted, fields if volume.writable else (*fields, "readonly")))


def _quoted(field: str) -> str:
    """Return a field for a line of CSV, in quotation marks if necessary."""
    plain = not set(field) & set('",\r\n')
    return field if plain else '"{}"'.format(field.replace('"', '""'))


# --- flags of the clients

# SELinux would deny access: neither devices nor folders are labelled as the container's, and to
# label them is not ours.
NO_LABELS = ("--security-opt", "label=disable")


def run_flags(
    container: Container,
    *,
    user: Sequence[str],
    home_options: str,
    gpus: Sequence[str],
    keep_groups: bool,
) -> tuple[str, ...]:
    """Return the flags for `docker run` or `podman run` that describe a container.

    `user` and `gpus` are flags that differ between engines. `home_options` are the engine's options
    for an in-memory file system that belongs to the user. If `keep_groups` is true, keep this
    user's groups instead of adding groups by id, because the host's group ids do not exist in the
    container.
    """
    devices = container.devices
    limits = container.limits
    words: list[str] = []
    if container.platform:
        words += ["--platform", container.platform]
    if not container.network:
        words += ["--network", "none"]
    words += [
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--ipc",
        "private",
        "--ulimit",
        "core=0:0",
    ]
    if limits.memory:
        words += ["--memory", str(limits.memory), "--memory-swap", "-1"]
    if limits.processes:
        words += ["--pids-limit", str(limits.processes)]
    if container.shares_files:
        words += NO_LABELS
    words += [*user, *_folder_flags(container, home_options)]
    words += [f"--publish={port.address}:{port.inside}" for port in container.ports]
    words += [f"--env={name}={value}" for name, value in container.variables.items()]
    words += [f"--env={name}" for name in container.passed]
    if container.entrypoint:
        words += ["--entrypoint", container.entrypoint[0]]
    groups = [*map(str, container.groups)]
    if devices:
        words += ["--shm-size", devices.shm_size]
        groups += map(str, devices.groups)
    words += gpus
    for name in (*devices.cdi, *devices.nodes) if devices else ():
        words += ["--device", name]
    if groups and keep_groups:
        groups = ["keep-groups"]
    for group in dict.fromkeys(groups):
        words += ["--group-add", group]
    return tuple(words)


def _folder_flags(container: Container, home_options: str) -> list[str]:
    """Return the flags for mounted folders, in-memory file systems, and the working folder."""
    words: list[str] = []
    if container.home:
        words += ["--tmpfs", "/tmp:exec", "--tmpfs", f"{container.home}:{home_options}"]  # noqa: S108
        words += ["--workdir", container.home]
    if container.project:
        words += ["--mount", bound(*container.project, writable=True), "--volume", "/tmp"]  # noqa: S108
        words += ["--workdir", container.workdir or container.project[1]]
    volumes = container.devices.volumes if container.devices else ()
    for source, target in (*container.mounts.items(), *((v, v) for v in volumes)):
        words += ["--mount", bound(source, target)]
    for source, target in container.writable.items():
        words += ["--mount", bound(source, target, writable=True)]
    for volume in container.volumes:
        words += ["--mount", mount(volume)]
    return words
