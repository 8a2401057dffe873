"""Detect AMD GPUs, and decide which of them ROCm could use.

The name of a GPU is derived from its PCI id. Its ROCm target (gfx) is reported by the compute
driver (kfd), which lists the GPUs that can compute. If kfd does not list a GPU, the target is
derived from the PCI id. Profiles specify which GPUs the wheels support.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from envbuilder.host import tables
from envbuilder.host.gpus import pci
from envbuilder.host.gpus.accelerator import (
    Accelerator,
    Finding,
    Level,
    Needs,
    Place,
    blocked,
    named,
    unknown_kernels,
)
from envbuilder.host.model import Gpu, Host
from envbuilder.host.snapshot import Reader, Snapshot, integer, lines

KFD = "dev/kfd"
_NODES = "sys/class/kfd/kfd/topology/nodes"
_MEMORY = ("mem_info_vram_total", "mem_info_gtt_total")
_CHOOSING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
# Linux amdgpu_pm.c: "only APUs have vddnb", "no mclk on APUs"; the exception is the MI300A, which
# also lacks a memory manager of its own.
_ONLY_APU = "in1_label"
_NO_APU = "freq2_label"
# `location_id` combines bus, device and function. On a card in several partitions, Linux adds the
# partition's number in the highest four bits or, at first, in place of the function (Linux
# kfd_topology.c; amd-gfx, "Add partition id field to location_id").
_CARD = 0xFFF8


# Windows' folders of AMD's display drivers, such as u0389403.inf_amd64_6b3a61d3a0f5a6a5.
_WINDOWS_DRIVER = re.compile(r"[uc]0[0-9]{6}\.inf_", re.ASCII)


class _Node(NamedTuple):
    """A node of the compute driver: a GPU, or a partition of a GPU."""

    number: int
    """Number of the node. ROCm numbers GPUs in the order of these numbers."""
    properties: dict[str, int]


def read(reader: Reader) -> None:
    """Read what the kernel drivers report about each GPU."""
    reader.node(KFD)
    for device in pci.display_devices(reader, pci.AMD):
        for name in _MEMORY:
            reader.file(f"{device}/{name}")
        for chip in reader.folder(f"{device}/hwmon"):
            reader.folder(f"{device}/hwmon/{chip}")
    for node in reader.folder(_NODES):
        reader.file(f"{_NODES}/{node}/properties")


def decide(snapshot: Snapshot, devices: Sequence[pci.Device], place: Place) -> tuple[Gpu, ...]:
    """Return all AMD GPUs in ROCm's order, with one entry for each partition of a card."""
    nodes = _nodes(snapshot)
    hidden = _hidden_by(place.environ)
    placed = []
    for device in devices:
        if device.vendor == pci.AMD:
            of_card = [node for node in nodes if _is_of(node, device.bus)]
            parts: Sequence[_Node | None] = of_card or (None,)
            placed += [(node, _gpu(snapshot, device, node, len(parts), hidden)) for node in parts]
    placed.sort(key=lambda pair: (pair[0] is None, pair[0].number if pair[0] else 0))
    gpus = tuple(gpu for _, gpu in placed)
    if gpus and all(node for node, _ in placed) and _unread(snapshot) - _hidden(snapshot):
        # Perhaps another partition.
        return (
            *gpus,
            Gpu(
                vendor="unknown",
                name="unknown",
                state="unknown",
                detail="A node of AMD's compute driver (kfd) could not be read.",
                obstacle="unread",
            ),
        )
    drivers = snapshot.names("usr/lib/wsl/drivers")
    if not gpus and place.wsl and any(map(_WINDOWS_DRIVER.match, drivers)):
        # ROCm on WSL goes through librocdxg and needs settings of its own (ROCm/librocdxg).
        detail = "Under WSL, ROCm uses a special library (librocdxg), which is not supported yet."
        gpus = (Gpu(vendor="amd", name="AMD GPU", state="present", detail=detail, obstacle="wsl"),)
    return gpus


def _gpu(
    snapshot: Snapshot,
    device: pci.Device,
    node: _Node | None,
    parts: int,
    hidden: pci.Access | None,
) -> Gpu:
    folder = f"{pci.PCI}/{device.bus}"
    properties = node.properties if node else {}
    size = _memory(snapshot, folder, properties)
    if parts > 1:
        # How much of the card's memory a partition may use depends on how it is partitioned, too.
        size = pci.Size(size.kind)
    row = tables.amd_gpu(device.device_id or "")
    name = row.name if row else f"GPU {device.device_id or ''}".strip()
    minor = properties.get("drm_render_minor")
    opened = f"/dev/dri/renderD{minor}" if minor else device.render_node
    access = (
        hidden
        or pci.driver(device, ("amdgpu",), "ROCm")
        or pci.opened(
            snapshot,
            f"/{KFD}",
            f"--device /{KFD} --device /dev/dri",
            is_missing=snapshot.has(KFD) is False,
        )
        or (_unlisted(snapshot) if node is None else None)
        or pci.render_node(snapshot, opened)
        or pci.USABLE
    )
    return Gpu(
        vendor="amd",
        name=f"AMD {name}" + (f" (1 of {parts} partitions)" if parts > 1 else ""),
        state=access.state,
        detail=access.detail,
        obstacle=access.obstacle,
        bus=device.bus,
        device_id=device.device_id,
        family=_target(properties.get("gfx_target_version")) or (row.gfx if row else None),
        kernel_driver=device.driver,
        memory_kind=size.kind,
        memory_bytes=size.total,
        usable_bytes=size.usable,
        render_node=opened,
        render_node_readable=snapshot.nodes.get((opened or "").lstrip("/")),
        render_node_group=pci.node_group(
            snapshot, opened if snapshot.nodes.get(KFD, True) else f"/{KFD}"
        ),
    )


def _hidden_by(environ: Mapping[str, str]) -> pci.Access | None:
    """Return the access to any GPU if an environment variable hides all GPUs, otherwise None.

    Besides its own variables, HIP also reads CUDA's variable.
    """
    for name in _CHOOSING:
        value = environ.get(name)
        if value is not None and value.strip() in ("", "-1"):
            return pci.Access("present", f"{name}={value!r} hides it from this process.", "hidden")
    return None


def _unlisted(snapshot: Snapshot) -> pci.Access:
    """Return the access to a GPU that the compute driver does not list, including the reason."""
    unread = _unread(snapshot)
    if unread and unread <= _hidden(snapshot):
        return pci.Access(
            "present", "The container's device rules do not give it to this process.", "not-given"
        )
    if unread or not snapshot.folders.get(_NODES):
        return pci.Access(
            "unknown", "The list of the compute driver (kfd) could not be read.", "unread"
        )
    return pci.Access(
        "present",
        "The compute driver (kfd) does not list it: it does not support the chip or the slot.",
        "unsupported",
    )


def _unread(snapshot: Snapshot) -> set[str]:
    """Return the paths of the unreadable files that describe nodes of the compute driver."""
    paths = {f"{_NODES}/{node}/properties" for node in snapshot.names(_NODES)}
    return paths - snapshot.files.keys()


def _hidden(snapshot: Snapshot) -> set[str]:
    """Return the paths of files that Linux hides because the container may not use the GPU.

    When such a file is read, Linux reports EPERM (function kfd_devcgroup_check_permission). A file
    that cannot be read because of its mode causes a different error.
    """
    return {
        path for path, reason in snapshot.unreadable.items() if reason == os.strerror(errno.EPERM)
    }


def _nodes(snapshot: Snapshot) -> list[_Node]:
    """Return those nodes of the compute driver that are GPUs."""
    nodes = []
    for name in snapshot.names(_NODES):
        text = snapshot.files.get(f"{_NODES}/{name}/properties")
        pairs = [line.split(" ") for line in lines(text)]
        properties = {p[0]: n for p in pairs if len(p) == 2 and (n := integer(p[1])) is not None}
        number = integer(name)
        if number is not None and properties.get("simd_count"):
            nodes.append(_Node(number, properties))
    return nodes


def _is_of(node: _Node, address: str) -> bool:
    """Return whether a node belongs to the card at the given PCI address."""
    domain, _, rest = address.partition(":")
    bus, _, slot = rest.partition(":")
    parts = [integer(part, 16) for part in (domain, bus, slot.partition(".")[0])]
    location = node.properties.get("location_id")
    if None in parts or location is None:
        return False
    bus_location = (parts[1] or 0) << 8 | (parts[2] or 0) << 3
    return (node.properties.get("domain", 0), location & _CARD) == (parts[0], bus_location)


def _target(number: int | None) -> str | None:
    """Return the ROCm compiler target for kfd's version number, or None if the number is invalid.

    For example, the target for 110000 is gfx1100, and the target for 90402 is gfx942.
    """
    if not number or number >= 10**6:
        return None
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"


def _memory(snapshot: Snapshot, folder: str, properties: dict[str, int]) -> pci.Size:
    """Return the size and speed of a card's memory.

    For a discrete card, this is the card's own memory. For an APU, it is the main memory plus the
    memory that the firmware reserves for the GPU.
    """
    vram = snapshot.number(f"{folder}/{_MEMORY[0]}")
    gtt = snapshot.number(f"{folder}/{_MEMORY[1]}")
    sensors: set[str] = set()
    for chip in snapshot.names(f"{folder}/hwmon"):
        sensors.update(snapshot.names(f"{folder}/hwmon/{chip}"))
    if _ONLY_APU in sensors or properties.get("cpu_cores_count"):
        from envbuilder.host import memory  # every profile reads this module, few hosts its size

        main = memory.total(snapshot)
        if main is None or vram is None:
            return pci.Size("shared")
        total = main + vram
        return pci.Size("shared", total, None if gtt is None else min(vram + gtt, total))
    if _NO_APU in sensors and vram:
        return pci.Size("dedicated", vram)
    return pci.Size()


# What fits: the GPUs that the libraries in a torch serve, and the driver's nodes. Kernels run on
# the target that they were compiled for and on no other. The override that makes ROCm take one GPU
# for another (HSA_OVERRIDE_GFX_VERSION) is a debugging aid, under which programs crash (ROCm/MIOpen
# issues 3540 and 3954): nothing here counts on it.


def judge(gpu: Gpu, needs: Needs, native: bool) -> list[Finding]:
    """Return findings about whether the wheels support a GPU, and whether the GPU is accessible.

    Access requires the kernel driver and the device nodes.
    """
    kernels = _kernels(needs, gpu)
    if gpu.state == "usable":
        return [*kernels, Finding("note", f"kernel driver {gpu.kernel_driver}")]
    # The engine opens the nodes as root, and the container joins the groups that own them.
    reachable = gpu.obstacle == "node-closed" and not native
    level: Level = "warning" if gpu.state == "unknown" or reachable else "no"
    # Worth knowing before anything is repaired: whether the wheels serve the GPU at all.
    worse = [f for f in kernels if f.level == "no" or f.code == "kernels-partly"]
    return [*worse, blocked(level, gpu)]


def capability(gpu: Gpu) -> tuple[float, ...]:
    """Return a sort key by which more capable GPUs rank higher.

    Usable GPUs rank above all others, then discrete cards above APUs, then GPUs with more memory
    above those with less.
    """
    return gpu.state == "usable", gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def order(gpus: Sequence[Gpu], _selected: Sequence[Gpu]) -> Sequence[Gpu] | None:
    """Return the GPUs that HIP sees, in HIP's order, which is the order of the compute driver.

    Return None if the order is uncertain because a container could see GPUs that this user is not
    allowed to open.
    """
    if any(gpu.state == "unknown" or gpu.obstacle == "node-closed" for gpu in gpus):
        return None
    return [gpu for gpu in gpus if gpu.state == "usable"]


def _kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
    """Return findings about whether the wheels' libraries support a GPU."""
    if not needs.kernels:
        return [unknown_kernels(gpu)]
    if gpu.family is None:
        return [
            Finding("warning", f"the chip of {named(gpu)} could not be read", "gfx-unread", gpu)
        ]
    if gpu.family in needs.kernels:
        return [Finding("note", f"{gpu.name} is {gpu.family}")]
    if gpu.family in needs.partly:
        return [
            Finding(
                "warning",
                f"{named(gpu)} is {gpu.family}, which only some of the wheels' libraries support",
                "kernels-partly",
                gpu,
            )
        ]
    return [
        Finding(
            "no",
            f"{named(gpu)} is {gpu.family}, but the wheels only support {', '.join(needs.kernels)}",
            "kernels",
            gpu,
        )
    ]


def _runs(target: str, gpu: Gpu) -> bool:
    """Return whether code for a target, or for a family of targets, runs on a GPU.

    The target `gfx` stands for code in a format that envbuilder does not parse. Such code is
    assumed to run.
    """
    if target.endswith("-generic"):
        return str(gpu.family).startswith(target.removesuffix("-generic").replace("-", ""))
    return target in {"gfx", gpu.family}


# How to repair it


def install(gpu: Gpu, host: Host, needed: str) -> str:
    """Return instructions for loading the kernel driver.

    The driver does not have to be installed, because every Linux distribution contains it.
    """
    if host.container:
        return "Load amdgpu on the machine itself, since a container uses the machine's kernel."
    return (
        "Run `sudo modprobe amdgpu`. If nothing changes, `sudo dmesg | grep amdgpu` shows why: a"
        " recent GPU may need a newer Linux."
    )


def fixes(gpu: Gpu, host: Host) -> dict[str, str]:
    """Return the fixes for an AMD GPU that does not work, keyed by obstacle or finding code."""
    fixes_by_obstacle = {
        "unsupported": "Use --profile cpu: ROCm cannot use this GPU (see `sudo dmesg | grep kfd`).",
        "wsl": "Use --profile cpu, or Linux without WSL.",
        "not-given": f"Start the container with --device {gpu.render_node or '/dev/dri'}.",
        "kernels": _other_wheels(gpu),
    }
    if gpu.detail.startswith(f"/{KFD} "):
        missing = "Run `sudo dmesg | grep kfd` to see why: Linux must be built with CONFIG_HSA_AMD."
        if host.container:
            missing = f"Start the container with --device /{KFD} --device /dev/dri."
        fixes_by_obstacle["node-missing"] = missing
        fixes_by_obstacle["node-closed"] = pci.join_group(gpu, host, f"/{KFD}")
    return fixes_by_obstacle


def _other_wheels(gpu: Gpu) -> str:
    """Return advice about other wheels for a GPU that the profile's wheels do not support."""
    index = tables.amd_index(gpu.family or "")
    if index is None:
        return "Use --profile cpu: neither PyTorch's nor AMD's wheels have kernels for this GPU."
    untested = "" if index == "release" else ", listed there as untested,"
    return (
        f"AMD's own index has wheels{untested} for {gpu.family} (github.com/ROCm/TheRock,"
        " RELEASES.md): install them yourself, and check them with `envbuilder verify --python"
        " PYTHON`."
    )


ROCM = Accelerator(
    name="rocm",
    vendor="amd",
    brand="AMD",
    aliases=("amd", "radeon", "hip", "instinct", r"gfx\w+", r"mi\d+x?", "rocm.*"),
    pci=pci.AMD,
    # The MI300 has no display output (apache/cloudstack issue 11701).
    processing=True,
    read=read,
    decide=decide,
    judge=judge,
    capability=capability,
    states_kernels=True,
    architecture=attrgetter("family"),
    code="gfx",
    runs=_runs,
    choosing=_CHOOSING,
    passed=("GPU_DEVICE_ORDINAL",),
    order=order,
    disguise="HSA_OVERRIDE_GFX_VERSION",
    cdi="amd.com/gpu=all",
    install=install,
    fixes=fixes,
)
