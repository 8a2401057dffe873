"""Map a profile's device access to options of the docker SDK and to `run` flags."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.containers.engine import podman
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.containers.engine import client as engine
    from envbuilder.profiles.profile import Profile


def host_nodes(profile: Profile) -> dict[str, int]:
    """Return the host's device nodes and folders that the flags depend on → their group ids."""
    found = {}
    paths = [*profile.run.devices, *profile.run.volumes]
    for pattern in profile.run.groups_of:
        paths += glob.glob(pattern)  # noqa: PTH207 (an absolute pattern)
    for path in paths:
        if Path(path).exists():
            found[path] = Path(path).stat().st_gid
    return found


def device_options(profile: Profile, nodes: Mapping[str, int]) -> dict[str, Any]:
    """Return what a container needs to reach the device; `nodes`: existing paths → group ids."""
    run = profile.run
    groups = {gid for path, gid in nodes.items() if path not in (*run.devices, *run.volumes)}
    return {
        "gpus": run.gpus,
        "devices": [d for d in run.devices if d in nodes],
        "groups": sorted(groups),
        "volumes": [v for v in run.volumes if v in nodes],
        "shm_size": run.shm_size,
    }


def sdk_options(options: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Return device options for the docker SDK, with further folders mounted read-only."""
    import docker.types

    # Mounts, not volumes: a missing source of a volume would be created on the host, as root.
    sources = {**folders, **{v: v for v in options["volumes"]}}
    made: dict[str, Any] = {
        "shm_size": options["shm_size"],
        "mounts": [
            docker.types.Mount(target, source, type="bind", read_only=True)
            for source, target in sources.items()
        ],
    }
    if options["gpus"]:
        made["device_requests"] = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    if options["devices"]:
        made["devices"] = [f"{d}:{d}:rwm" for d in options["devices"]]
    if options["groups"]:
        made["group_add"] = [str(g) for g in options["groups"]]
    return made


def cli_options(options: Mapping[str, Any], target_engine: engine.Engine) -> tuple[str, ...]:
    """Return device options as flags of `docker run` or `podman run`."""
    flags = ["--shm-size", options["shm_size"]]
    groups = [str(group) for group in options["groups"]]
    if target_engine.client == "podman":
        # SELinux would deny access: neither devices nor folders are labelled as the container's.
        flags += ["--security-opt", "label=disable"]
        if options["gpus"]:
            flags += ["--device", f"{podman.GPU}={options['gpus']}"]
        if groups and target_engine.rootless:
            groups = ["keep-groups"]  # other groups of the host do not exist inside
    elif options["gpus"]:
        flags += ["--gpus", options["gpus"]]
    for device in options["devices"]:
        flags += ["--device", device]
    for group in groups:
        flags += ["--group-add", group]
    for volume in options["volumes"]:
        flags += ["--mount", bound(volume, volume)]
    return tuple(flags)


def bound(source: str, target: str) -> str:
    """Return the value of `--mount` for a read-only folder."""
    if "," in source:
        raise InvalidError(f"{source}: a folder with ',' in its name cannot be mounted")
    return f"type=bind,source={source},target={target},readonly"
