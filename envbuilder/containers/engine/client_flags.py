"""Translate a container into flags of `docker run` and `podman run`, which read them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.containers.engine.container import bound, mount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.containers.engine.container import Container, Devices, Limits

# SELinux would deny access: neither devices nor folders are labelled as the container's, and to
# label them is not ours.
NO_LABELS = ("--security-opt", "label=disable")


def flags(
    container: Container,
    *,
    user: Sequence[str],
    home_options: str,
    gpus: Sequence[str],
    keep_groups: bool,
) -> tuple[str, ...]:
    """Return the flags for a container.

    `user` and `gpus` are the engine's own flags, `home_options` its options for a file system in
    memory that belongs to the user. `keep_groups`: the host's groups do not exist inside, and this
    user's are kept instead.
    """
    devices = container.devices
    groups: list[str] = [str(g) for g in (*container.groups, *(devices.groups if devices else ()))]
    if groups and keep_groups:
        groups = ["keep-groups"]
    return (
        *(("--platform", container.platform) if container.platform else ()),
        *(() if container.network else ("--network", "none")),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--ipc", "private", "--ulimit", "core=0:0"),
        *_limit_flags(container.limits),
        *(NO_LABELS if container.shares_files else ()),
        *user,
        *_folder_flags(container, home_options),
        *(f"--publish={port.address}:{port.inside}" for port in container.ports),
        *(f"--env={name}={value}" for name, value in container.variables.items()),
        *(f"--env={name}" for name in container.passed),
        *(("--entrypoint", container.entrypoint[0]) if container.entrypoint else ()),
        *(("--shm-size", devices.shm_size) if devices else ()),
        *gpus,
        *(word for name in _given(devices) for word in ("--device", name)),
        *(word for group in dict.fromkeys(groups) for word in ("--group-add", group)),
    )


def _given(devices: Devices | None) -> tuple[str, ...]:
    """Return the device files and CDI devices; both clients take them with one flag."""
    return (*devices.cdi, *devices.nodes) if devices else ()


def _limit_flags(limits: Limits) -> tuple[str, ...]:
    return (
        *(("--memory", str(limits.memory), "--memory-swap", "-1") if limits.memory else ()),
        *(("--pids-limit", str(limits.processes)) if limits.processes else ()),
    )


def _folder_flags(container: Container, home_options: str) -> tuple[str, ...]:
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
    return tuple(words)
