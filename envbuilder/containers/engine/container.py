"""Describe a container to run, and translate it into flags of `docker run` and `podman run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

_MIB = 1 << 20
_GIB = 1 << 30
_PROCESSES = 4096
_PROCESSES_PER_CPU = 128
"""Processes include threads: each DataLoader worker and each rank may start some per CPU."""
LOOPBACK = "127.0.0.1"


class Limits(Struct, frozen=True, kw_only=True):
    """What a container may use of the engine's machine; 0 if the engine has no such limit."""

    memory: int = 0
    """Bytes, including page cache and files in memory; the machine's swap is not limited."""
    processes: int = 0
    """Processes and threads."""


class Devices(Struct, frozen=True, kw_only=True):
    """What a container needs to reach its device."""

    gpus: str = ""
    """NVIDIA GPUs as in `--gpus`; empty for none."""
    cdi: tuple[str, ...] = ()
    """Names in the Container Device Interface (CDI), such as `amd.com/gpu=all`."""
    nodes: tuple[str, ...] = ()
    """Device files, or folders of them."""
    groups: tuple[int, ...] = ()
    """Ids of the host's groups that may open the nodes."""
    volumes: tuple[str, ...] = ()
    """Folders mounted read-only at the same path."""
    shm_size: str


class Port(Struct, frozen=True, kw_only=True):
    """A port of the host that leads to one of the container."""

    host: str = LOOPBACK
    """The host's address on which it listens."""
    outside: int
    inside: int

    @property
    def address(self) -> str:
        """The host's address and port, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.outside}"


class Volume(Struct, frozen=True, kw_only=True):
    """A folder of the host, or a volume of the engine, that the container sees at a path."""

    source: str
    """An absolute path, or the name of a volume."""
    target: str
    writable: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the host."""
        return self.source.startswith("/")


class Container(Struct, frozen=True, kw_only=True):
    """A container with a read-only root filesystem, without capabilities or new privileges.

    Every engine drops all capabilities, sets `no-new-privileges`, gives the container its own IPC
    namespace, writes no core dumps and keeps its default seccomp and AppArmor profiles.
    """

    image: str
    """The image's id, because a name may mean another image by now."""
    user: str
    """uid:gid inside."""
    limits: Limits
    entrypoint: tuple[str, ...] = ()
    """Empty for the image's own."""
    arguments: tuple[str, ...] = ()
    platform: str = ""
    """Empty for the image's own."""
    network: bool = False
    is_held: bool = False
    """Keep its stdin open while this process lives, for a command that ends with it."""
    variables: Mapping[str, str] = {}
    home: str = ""
    """The user's working folder, a file system in memory like /tmp; if empty, there is neither."""
    mounts: Mapping[str, str] = {}
    """Folders of the host → paths inside, read-only."""
    writable: Mapping[str, str] = {}
    """The same, writable for the container."""
    project: tuple[str, str] | None = None
    """A folder of the host and its path inside: it can be written, and so can /tmp, which is a
    volume. `user` is then a user of the host."""
    workdir: str = ""
    """The working folder inside; empty for the project or, without one, the home."""
    ports: tuple[Port, ...] = ()
    volumes: tuple[Volume, ...] = ()
    passed: tuple[str, ...] = ()
    """Variables with the values that the engine's client has for them. Like `project`, ports and
    volumes, they are for commands in the foreground."""
    groups: tuple[int, ...] = ()
    """Ids of the host's groups that the user needs for the project."""
    devices: Devices | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The image, its command and the arguments: the end of a client's `run`."""
        return (self.image, *self.entrypoint[1:], *self.arguments)

    @property
    def shares_files(self) -> bool:
        """Whether files or devices of the host are visible inside."""
        folders = any(volume.is_folder for volume in self.volumes)
        return bool(self.mounts or self.writable or self.project or self.devices or folders)


def limits(memory: int, cpus: int) -> Limits:
    """Return limits that keep a machine with these bytes and CPUs responsive.

    All but a sixteenth of the memory (256 MiB to 4 GiB) may be used. Either is 0 if the engine
    cannot limit it.
    """
    reserve = min(max(memory // 16, 256 * _MIB), 4 * _GIB)
    return Limits(
        memory=max(memory - reserve, memory // 2),
        processes=max(_PROCESSES, _PROCESSES_PER_CPU * cpus) if cpus else 0,
    )


def bound(source: str, target: str, *, writable: bool = False) -> str:
    """Return the value of `--mount` for a folder of the host."""
    return mount(Volume(source=source, target=target, writable=writable))


def mount(volume: Volume) -> str:
    """Return the value of `--mount` for a volume; the clients read it as a line of CSV."""
    kind = "bind" if volume.is_folder else "volume"
    fields = (f"type={kind}", f"source={volume.source}", f"target={volume.target}")
    return ",".join(map(_quoted, fields if volume.writable else (*fields, "readonly")))


def _quoted(field: str) -> str:
    """Return a CSV field, quoted if necessary."""
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
    """Return the flags for a container.

    `user` and `gpus` are the engine's own flags, `home_options` its options for a file system in
    memory that belongs to the user. `keep_groups`: keep this user's groups, since the host's do not
    exist inside.
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
    """Return the flags for folders of the host, files in memory and the working folder."""
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
