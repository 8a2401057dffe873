"""Translate a profile's device access into the device nodes and groups that exist on this host."""

from __future__ import annotations

import glob
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.containers.engine.container import Devices
from envbuilder.core.errors import printable
from envbuilder.host.accelerators import ACCELERATORS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from envbuilder.core import types
    from envbuilder.profiles.profile import Profile


def visible(
    accelerator: types.Accelerator, hiding: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Return the variables that select the GPUs an environment may use, and a note for the user.

    `hiding` contains variables that hide GPUs that do not work. The caller's variables in `environ`
    take precedence over the variables in `hiding`. The result always includes the caller's
    variables that select GPUs, because a container does not inherit them. The note may be empty.
    """
    row = ACCELERATORS[accelerator]
    chosen = {name: environ[name] for name in (*row.numbering, *row.choosing) if environ.get(name)}
    if not hiding:
        return chosen, ""
    if any(hiding.get(name) != value for name, value in chosen.items()):
        shown = " ".join(f"{name}={printable(value)}" for name, value in chosen.items())
        return chosen, f"note: {shown} is set, so envbuilder does not hide GPUs that do not work"
    shown = " ".join(f"{name}={value}" for name, value in hiding.items())
    return dict(hiding), f"GPUs: {shown} hides GPUs that do not work here"


def host_nodes(profile: Profile) -> dict[str, int]:
    """Return the paths on the host that a profile uses to access devices, with their group ids.

    The paths are device nodes and folders. Paths that do not exist are omitted.
    """
    nodes = {}
    paths = [*profile.run.devices, *profile.run.volumes]
    for pattern in profile.run.groups_of:
        paths += glob.glob(pattern)  # noqa: PTH207 (an absolute pattern)
    for path in paths:
        if Path(path).exists():
            nodes[path] = Path(path).stat().st_gid
    return nodes


def devices(profile: Profile, nodes: Mapping[str, int]) -> Devices:
    """Return the devices, groups and volumes that a container needs to use the accelerator.

    `nodes` maps the paths that exist on the host to their group ids, as `host_nodes` returns them.
    """
    run = profile.run
    # A node may be passed on and its group joined, too: AMD's /dev/kfd.
    groups = set()
    for path, gid in nodes.items():
        if path not in run.volumes and any(map(PurePath(path).match, run.groups_of)):
            groups.add(gid)
    return Devices(
        gpus=run.gpus,
        nodes=tuple(path for path in run.devices if path in nodes),
        groups=tuple(sorted(groups)),
        volumes=tuple(path for path in run.volumes if path in nodes),
        shm_size=run.shm_size,
    )


def by_cdi(access: Devices, profile: Profile, offered: Collection[str]) -> Devices:
    """Replace the GPUs and device nodes with the accelerator's CDI device, if the engine offers it.

    CDI is the Container Device Interface. If the engine does not offer the device, return the
    access unchanged. The groups are kept, because the process that opens the device nodes is not
    root.
    """
    name = ACCELERATORS[profile.accelerator].cdi
    if name not in offered:
        return access
    return replace(access, gpus="", nodes=(), cdi=(name,))
