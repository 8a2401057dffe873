"""Detect NVIDIA GPUs, and decide which of them this process could use.

NVML reports the most data. Without NVML or without a driver, the name, chip and compute capability
are derived from the PCI id, which is enough to identify the GPU but does not make it usable.

On Tegra chips (Jetson) before Thor, the GPU is not on a PCI bus and has its own driver. NVML
reports no address for such a GPU, and the device tree gives the name of the chip. Thor's GPU is a
PCI device that uses NVIDIA's common driver (JetPack 7), and is detected like any other GPU.

This module is long because each vendor has a single module that contains everything about it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from envbuilder.host import tables
from envbuilder.host.gpus import nvidia_access, nvml, pci
from envbuilder.host.gpus.accelerator import (
    Accelerator,
    Finding,
    Needs,
    Place,
    blocked,
    named,
    unknown_kernels,
)
from envbuilder.host.model import (
    Gpu,
    Host,
    Obstacle,
    State,
    distribution_of,
)
from envbuilder.host.snapshot import Reader, Snapshot, clean, integer, version

VERSION = "proc/driver/nvidia/version"
_GPUS = "proc/driver/nvidia/gpus"
_INBOX = ("nvraid", "nvdimm", "nvhda.", "nvhdau")
"""Prefixes of Windows driver names that do not indicate a GPU. Every Windows has the first two."""
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", re.ASCII)
# Not /proc/device-tree, which is a link to it.
_COMPATIBLE = "sys/firmware/devicetree/base/compatible"
_ALLOCATOR = "dev/nvmap"
"""Tegra's memory allocator. Unlike the device tree, it is visible in containers."""
_COMPATIBLE_LIMIT = 4096
"""Maximum size in bytes of the machine names that the firmware or a recorded tree states."""
_TARGET = re.compile(r"(sm|compute)_([0-9]+)([0-9])([af]?)")
CDI_FILE = "/etc/cdi/nvidia.yaml"
"""The path to which `nvidia-ctk` is told to write its CDI specification."""
_CONTROL_MINOR = 255
"""Minor number of /dev/nvidiactl (the driver's README, chapter on device files)."""
# Branches of Debian's package nvidia-driver: packages.debian.org;
# neurite.github.io/debian-setup/0302-nvidia.
_DEBIAN_HAS = {"12": "535", "13": "550"}
# Turing is the first generation that later branches and the open kernel modules support: NVIDIA's
# deprecation schedule (forums.developer.nvidia.com 60588), open-gpu-kernel-modules issue 19.
_TURING = (7, 5)
_LAST_BEFORE_TURING = "580"


def read(reader: Reader) -> None:
    """Read the driver's files and nodes and, if there is a driver, NVML's response."""
    reader.file(VERSION)
    for address in reader.folder(_GPUS):
        reader.file(f"{_GPUS}/{address}/information")
    nvidia_access.read(reader)
    reader.file(_COMPATIBLE, _COMPATIBLE_LIMIT)
    reader.node(_ALLOCATOR)
    if not reader.live:
        reader.file("nvml.json")
    elif VERSION in reader.files or "dev/dxg" in reader.nodes:
        answer = nvml.ask()
        if answer is not None:
            reader.files["nvml.json"] = answer


def decide(snapshot: Snapshot, devices: Sequence[pci.Device], place: Place) -> tuple[Gpu, ...]:
    """Return all NVIDIA GPUs that PCI, the kernel driver or NVML reports, without duplicates."""
    answer = nvml.parse(snapshot.files.get("nvml.json"))
    driver = _driver(snapshot, answer)
    access = _access(snapshot, answer, driver, place)
    reported = {device.bus: device for device in answer.devices if device.bus} if answer else {}
    unplaced = [device for device in answer.devices if not device.bus] if answer else []
    shown = {device.bus: device for device in devices if device.vendor == pci.NVIDIA}
    addresses = (clean(bus) or "?" for bus in snapshot.names(_GPUS))
    buses = sorted({*shown, *addresses, *reported})
    reached = {bus: _bound(shown[bus], access) if bus in shown else access for bus in buses}
    if not place.wsl:
        minors = {
            bus: _minor(snapshot, bus, reported.get(bus))
            for bus in buses
            if reached[bus].state == "usable"
        }
        reached |= nvidia_access.of_cards(
            snapshot, minors, frozenset(reported), container=place.container
        )
    gpus = []
    for bus in buses:
        card = shown.get(bus)
        card_access = reached[bus]
        if card_access.state == "usable" and answer and bus not in reported and not unplaced:
            card_access = pci.Access(
                "present", "The driver does not give this GPU to this process.", "not-given"
            )
        gpus.append(_gpu(snapshot, bus, card, reported.get(bus), driver, card_access))
    gpus.extend(_gpu(snapshot, None, None, device, driver, access) for device in unplaced)
    return tuple(gpus) or _without_pci(snapshot, wsl=place.wsl)


def _minor(snapshot: Snapshot, bus: str, device: nvml.Device | None) -> int | None:
    """Return N in the path of a card's device node, /dev/nvidiaN, or None if it is unknown.

    N is reported by the kernel driver or, if the driver does not report it, by NVML.
    """
    number = integer(snapshot.fields(f"{_GPUS}/{bus}/information").get("Device Minor"))
    if number is None and device:
        return device.minor
    return number


def _gpu(
    snapshot: Snapshot,
    bus: str | None,
    card: pci.Device | None,
    reported: nvml.Device | None,
    driver: str | None,
    access: pci.Access,
) -> Gpu:
    """Return the description of a GPU.

    The arguments contain what is known about the GPU. It may be known from its PCI card (`card`),
    only from its PCI address (`bus`), or only from NVML (`reported`).
    """
    device_id = card.device_id if card else None
    row = tables.nvidia_gpu(device_id or "")
    name = reported.name if reported else _model(snapshot, bus)
    if name is None and row is not None:
        name = f"NVIDIA {row.name or row.chip}"
    minor = _minor(snapshot, bus or "", reported)
    reported = reported or nvml.Device(name="")
    if access.state == "usable":
        access = nvidia_access.of_modes(snapshot, reported, minor) or access
    size = _memory(snapshot, reported)
    return Gpu(
        vendor="nvidia",
        name=name or f"NVIDIA GPU {device_id or ''}".strip(),
        state=access.state,
        detail=access.detail,
        obstacle=access.obstacle,
        bus=bus,
        device_id=device_id,
        family=row.chip if row else None,
        kernel_driver=card.driver if card else None,
        driver_version=driver,
        # A vGPU ("GRID A100-10C") is named after its GPU.
        sm=reported.sm
        or (row.sm if row else None)
        or (tables.nvidia_sm(name.removeprefix("GRID ")) if name else None),
        memory_kind=size.kind,
        memory_bytes=size.total,
        usable_bytes=size.usable,
        bandwidth=size.bandwidth,
        mig=reported.mig,
    )


def _model(snapshot: Snapshot, bus: str | None) -> str | None:
    """Return a GPU's name as the kernel driver reports it, or None if it reports none."""
    model = clean(snapshot.fields(f"{_GPUS}/{bus}/information").get("Model"))
    if model != "Unknown":
        return model
    return None


def _memory(snapshot: Snapshot, device: nvml.Device) -> pci.Size:
    if device.shared_memory and not device.mig and device.memory_bytes is None:
        # GB10 and Jetson: NVML answers "Not Supported" (NVIDIA, DGX Spark known issues). How much
        # main memory CUDA can allocate depends on what else uses it.
        from envbuilder.host import memory  # every profile reads this module, few hosts its size

        return pci.Size(kind="shared", total=memory.total(snapshot))
    if device.memory_bytes is None:
        return pci.Size()
    usable = None
    if device.reserved_bytes is not None and device.reserved_bytes <= device.memory_bytes:
        usable = device.memory_bytes - device.reserved_bytes
    bandwidth = None
    if device.memory_mhz and device.memory_bits:
        # As in CUDA's samples: two transfers per clock. NVML's clock fits that for all kinds of
        # memory: GDDR6X (RTX 4090: 10501 MHz, 384 bits, 1008 GB/s), GDDR7 (RTX 5070: 14001 MHz,
        # 192 bits, 672 GB/s), HBM3 (H100 SXM: 2619 MHz, 5120 bits, 3352 GB/s).
        bandwidth = 2 * device.memory_mhz * 10**6 * device.memory_bits // 8
    return pci.Size("dedicated", device.memory_bytes, None if device.mig else usable, bandwidth)


def _driver(snapshot: Snapshot, answer: nvml.Answer | None) -> str | None:
    match = _MODULE.search(snapshot.text(VERSION))
    loaded = match[1] if match else None
    if answer and version(answer.driver_version):
        return answer.driver_version
    return loaded


def _bound(card: pci.Device, access: pci.Access) -> pci.Access:
    """Return the access to a card, given the access to NVIDIA's driver.

    The result differs from `access` if the card is bound to another driver or to no driver.
    """
    if card.driver not in (None, "nvidia"):
        return pci.Access(
            "present",
            f"The kernel driver {card.driver} is bound to it, but CUDA needs NVIDIA's own driver.",
            "driver-other",
        )
    if card.bound is False and access.state != "unknown":
        return pci.Access(
            "present", "No kernel driver is bound to it: install NVIDIA's driver.", "driver-missing"
        )
    if not card.certain and access.state == "usable":
        return pci.Access("unknown", "Its PCI class could not be read.", "unread")
    return access


def _access(
    snapshot: Snapshot,
    answer: nvml.Answer | None,
    driver: str | None,
    place: Place,
) -> pci.Access:
    """Return this process's access to NVIDIA's driver."""
    hidden = place.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        return pci.Access(
            "present", f"CUDA_VISIBLE_DEVICES={hidden!r} hides it from this process.", "hidden"
        )
    if answer and answer.error:
        return pci.Access(
            "unknown", f"NVIDIA's management library failed: {answer.error}.", "library-failed"
        )
    told = bool(answer and answer.devices)
    if snapshot.has(VERSION) is False and not told and not place.wsl:
        return pci.Access("present", "NVIDIA's kernel driver is not loaded.", "driver-missing")
    problem = nvidia_access.shared(snapshot, wsl=place.wsl, container=place.container)
    if problem is None and driver is None:
        detail = "The version of NVIDIA's driver could not be read."
        problem = pci.Access("unknown", detail, "driver-unread")
    return problem or pci.USABLE


def _without_pci(snapshot: Snapshot, *, wsl: bool) -> tuple[Gpu, ...]:
    """Return the GPUs that can only be detected indirectly.

    These are GPUs behind WSL's /dev/dxg, the GPU in a Tegra chip, and a GPU about which nothing is
    known except that a driver is loaded.
    """
    drivers = snapshot.names("usr/lib/wsl/drivers")
    if wsl and any(driver.startswith("nv") and driver[:6] not in _INBOX for driver in drivers):
        return (
            Gpu(
                vendor="nvidia",
                name="NVIDIA GPU",
                state="unknown",
                detail="WSL does not show the GPU itself, and NVML did not answer.",
                obstacle="wsl",
            ),
        )
    loaded = snapshot.has(VERSION)
    integrated = _tegra(snapshot, loaded=loaded)
    if integrated:
        return (integrated,)
    if not loaded:
        return ()
    return (
        Gpu(
            vendor="nvidia",
            name="NVIDIA GPU",
            state="unknown",
            detail="NVIDIA's driver is loaded, but none of its GPUs could be listed.",
            obstacle="unread",
        ),
    )


def _tegra(snapshot: Snapshot, *, loaded: bool | None) -> Gpu | None:
    """Return the GPU of a Tegra chip, or None if the machine has no Tegra chip.

    `loaded` says whether NVIDIA's common driver is loaded, or is None if that is unknown.
    """
    compatible = snapshot.text(_COMPATIBLE).split("\0")
    chip = next((row for name in compatible if (row := tables.tegra_chip(name))), None)
    if (
        chip is None
        and not snapshot.has(_ALLOCATOR)
        and not any(name.startswith("nvidia,tegra") for name in compatible)
    ):
        return None
    state: State
    obstacle: Obstacle
    if chip is None or not chip.common_driver:
        state = "present"
        obstacle = "unsupported"
        detail = f"PyTorch's own wheels do not run on it: {tables.JETSON_TORCH}."
    elif loaded is False:
        state = "present"
        obstacle = "driver-missing"
        detail = "NVIDIA's kernel driver is not loaded."
    else:
        state = "unknown"
        obstacle = "unread"
        detail = "The PCI bus does not show it."
    return Gpu(
        vendor="nvidia",
        name=f"NVIDIA {chip.name if chip else 'Tegra'}",
        state=state,
        detail=detail,
        obstacle=obstacle,
        sm=chip.sm if chip else None,
    )


# What fits: the driver that a CUDA runtime needs, and the kernels that a build contains


def judge(gpu: Gpu, needs: Needs, _native: bool) -> list[Finding]:
    """Return findings about a GPU's driver, and about whether the wheels have kernels for the GPU.

    The findings apply to native environments and to images, because both use the host's driver.
    """
    if gpu.obstacle == "wsl":
        return [blocked("warning", gpu)]
    if gpu.state == "present":
        # Worth knowing before the driver is installed: whether the wheels support the GPU at all.
        kernels = _kernels(needs, gpu)
        too_old = [f for f in kernels if f.level == "no" and gpu.obstacle != "unsupported"]
        return [*too_old, blocked("no", gpu)]
    findings = [*_driver_findings(needs, gpu), *_kernels(needs, gpu)]
    if gpu.state == "unknown":
        findings.append(blocked("warning", gpu))
    return findings


def capability(gpu: Gpu) -> tuple[float, ...]:
    """Return a sort key by which more capable GPUs rank higher.

    The key consists of the GPU's compute capability and its memory.
    """
    return (*sm_of(gpu.sm or "0.0"), gpu.memory_bytes or 0)


def order(gpus: Sequence[Gpu], _selected: Sequence[Gpu]) -> Sequence[Gpu] | None:
    """Return the GPUs that CUDA sees, in PCI bus order, or None if a bus address is unknown.

    This is not CUDA's default order, because CUDA orders GPUs by speed by default, and the speed is
    unknown here.
    """
    seen = [gpu for gpu in gpus if gpu.state != "present" or gpu.obstacle == "no-instances"]
    if all(gpu.bus for gpu in seen):
        return sorted(seen, key=pci.bus_of)
    return None


def _driver_findings(needs: Needs, gpu: Gpu) -> list[Finding]:
    minimum = version(needs.driver)
    installed = version(gpu.driver_version)
    if installed is None:
        return [
            Finding(
                "warning", "the version of NVIDIA's driver could not be read", "driver-unread", gpu
            )
        ]
    if minimum is None:
        return [
            Finding(
                "warning", "it is unknown which driver its CUDA runtime needs", "lock-unread", gpu
            )
        ]
    if tables.tegra_of_sm(gpu.sm or ""):
        # JetPack numbers its drivers in another way: 580.00, of JetPack 7.0 and 7.1, has CUDA 13.0.
        minimum = minimum[:1]
    if installed < minimum:
        return [
            Finding(
                "no",
                f"NVIDIA driver {gpu.driver_version} is older than {needs.driver}, "
                "which its CUDA runtime needs",
                "driver-old",
                gpu,
            )
        ]
    return [Finding("note", f"NVIDIA driver {gpu.driver_version}")]


def _kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
    """Return findings about whether the wheels' kernels run on a GPU.

    Kernels run on the SM version for which they were built, and on higher minor versions of the
    same major version. PTX runs on any newer GPU. Tegra GPUs are an exception: they run only
    kernels that were built for exactly their SM version (CUDA C++ Programming Guide, "Binary
    Compatibility").
    """
    if not needs.kernels:
        return [unknown_kernels(gpu)]
    carried = f"the wheels have kernels for {', '.join(needs.kernels)}"
    if gpu.sm is None:
        text = f"the compute capability of {named(gpu)} is unknown ({carried})"
        return [Finding("warning", text, "sm-unread", gpu)]
    is_sm = f"{named(gpu)} is SM {gpu.sm}"
    text = f"{is_sm}, but {carried}"
    if gpu.sm not in needs.kernels and tables.tegra_of_sm(gpu.sm):
        text = (
            f"{is_sm} and only runs kernels for exactly this SM, but {carried}:"
            f" {tables.JETSON_TORCH}"
        )
    elif _serves(needs.kernels, gpu.sm):
        return [Finding("note", f"{gpu.name} is SM {gpu.sm}")]
    elif _serves(needs.partly, gpu.sm):
        text = f"{is_sm}, which only some of the wheels' libraries support"
        return [Finding("warning", text, "kernels-partly", gpu)]
    elif needs.ptx and sm_of(gpu.sm) > max(map(sm_of, needs.kernels)):
        text = (
            f"{is_sm}, newer than the wheels' kernels for {', '.join(needs.kernels)}: the driver"
            " would have to compile their PTX at first use"
        )
        return [Finding("warning", text, "kernels-ptx", gpu)]
    return [Finding("no", text, "kernels", gpu)]


def _serves(kernels: Iterable[str], capability: str) -> bool:
    major, minor = sm_of(capability)
    return any(sm[0] == major and sm[1] <= minor for sm in map(sm_of, kernels))


def sm_of(text: str) -> tuple[int, int]:
    """Return a compute capability such as "8.9" as two numbers.

    Return (0, 0) if the text is not a compute capability.
    """
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9])", text, re.ASCII)
    if match:
        return int(match[1]), int(match[2])
    return 0, 0


def _architecture(gpu: Gpu) -> str | None:
    return gpu.sm and f"SM {gpu.sm}"


def _runs(target: str, gpu: Gpu) -> bool:
    """Return whether code for a target runs on a GPU.

    Code runs on the SM version for which it was compiled, and on higher minor versions of the same
    major version. PTX runs on any newer GPU. Code for a target that ends in `a` runs only on
    exactly that SM version, and code for a target that ends in `f` runs on the family of that SM
    version. Tegra GPUs run only machine code for exactly their SM version.
    """
    match = _TARGET.fullmatch(target)
    if match is None or gpu.sm is None:
        return False
    made_for = (int(match[2]), int(match[3]))
    if match[4] == "a" or (match[1] == "sm" and tables.tegra_of_sm(gpu.sm)):
        return made_for == sm_of(gpu.sm)
    is_ptx = match[1] == "compute" and not match[4]
    return made_for <= sm_of(gpu.sm) and (is_ptx or made_for[0] == sm_of(gpu.sm)[0])


def _shown(targets: Collection[str]) -> list[str]:
    """Return a readable name for each target: first machine code, then PTX, sorted by number."""
    words = []
    for match in filter(None, map(_TARGET.fullmatch, targets)):
        kind = {"sm": "SM", "compute": "PTX"}[match[1]]
        key = (kind == "PTX", int(match[2] + match[3]), match[0])
        words.append((key, f"{kind} {match[2]}.{match[3]}{match[4]}"))
    return [text for _, text in sorted(words)]


# How to repair it


def install(gpu: Gpu, host: Host, needed: str) -> str:
    """Return instructions for installing NVIDIA's driver.

    `needed` is the oldest version of the driver that is sufficient, or "" if it is unknown.
    """
    newer = needed and f" {needed} or newer"
    if host.wsl:
        # docs.nvidia.com/cuda/wsl-user-guide: a Linux driver would hide the one from Windows.
        return (
            f"Install NVIDIA's driver{newer} in Windows (nvidia.com/drivers), not inside WSL."
            " Then run `wsl --shutdown` in Windows."
        )
    if host.container:
        return (
            f"Install NVIDIA's driver{newer} on the machine itself, since a container uses the"
            " machine's driver."
        )
    if tables.tegra_of_sm(gpu.sm or ""):
        # docs.nvidia.com/jetson: the driver is a part of Jetson Linux, and packages for servers
        # do not contain one for it.
        text = "Install JetPack 7 or newer, whose Jetson Linux contains the driver"
    else:
        text = f"{_packages(gpu, host, needed, newer)}, then restart"
        if needed:
            text += f", after which `nvidia-smi` must report{newer}"
        if _before_turing(gpu):
            text += f". Branch {_LAST_BEFORE_TURING} is the last one that supports this GPU"
    if gpu.obstacle == "driver-missing":
        text += ". If it is installed, `sudo modprobe nvidia` shows why it does not load"
    return f"{text}."


def _packages(gpu: Gpu, host: Host, needed: str, newer: str) -> str:
    name, number = distribution_of(host)
    if name == "Ubuntu":
        # It selects the branch that a GPU needs; ubuntu/ubuntu-release-notes issue 213 calls it the
        # supported way.
        return "Run `sudo ubuntu-drivers install` (package ubuntu-drivers-common)"
    has = name == "Debian" and _DEBIAN_HAS.get(number)
    if has and (version(needed) or (0,)) <= (version(has) or (0,)):
        return "Run `sudo apt install nvidia-driver` (in Debian's component non-free)"
    if has and not _before_turing(gpu):
        # docs.nvidia.com/datacenter/tesla/driver-installation-guide
        return (
            f"Debian {number} has driver {has}, but {needed} or newer is needed: add NVIDIA's"
            f" repository (developer.download.nvidia.com/compute/cuda/repos/debian{number},"
            " package cuda-keyring) and run `sudo apt install nvidia-open`"
        )
    if name == "Fedora" and not _before_turing(gpu):
        # rpmfusion.org/Howto/NVIDIA
        return (
            "Add RPM Fusion (rpmfusion.org/Howto/NVIDIA), run"
            " `sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda`, wait until `modinfo"
            " nvidia` finds the module"
        )
    return f"Install NVIDIA's driver{newer} (your distribution's package, or nvidia.com/drivers)"


def _before_turing(gpu: Gpu) -> bool:
    return (version(gpu.sm) or _TURING) < _TURING


def fixes(gpu: Gpu, host: Host) -> dict[str, str]:
    """Return the fixes for an NVIDIA GPU that does not work, keyed by obstacle."""
    nodes = "/dev/dxg" if host.wsl else "/dev/nvidia*"
    return {
        "library-failed": _library(gpu, host),
        "node-missing": _missing(gpu, host),
        "node-closed": f"Check who may open it: `ls -l {nodes}`."
        " NVIDIA's driver allows all users by default.",
        "not-given": (
            "Give it to this container or process (--gpus all, NVIDIA_VISIBLE_DEVICES, the"
            " scheduler's request). If this is already done, `sudo dmesg | grep NVRM` shows what"
            " failed."
        ),
        "no-instances": "Run `sudo nvidia-smi mig -lgip` for the sizes and `sudo nvidia-smi mig"
        " -cgi SIZE -C` to create instances, or `sudo nvidia-smi -mig 0` to turn MIG off.",
        "fabric": (
            "On the machine itself, run `sudo systemctl enable --now nvidia-fabricmanager`. Its"
            " version must match the driver's."
        ),
        "unsupported": f"{tables.JETSON_TORCH[0].upper()}{tables.JETSON_TORCH[1:]}.",
        "driver-unread": "Run `nvidia-smi` as a user who can read /sys and /proc/driver.",
    }


def _library(gpu: Gpu, host: Host) -> str:
    if "mismatch" in gpu.detail:
        # The loaded kernel module predates a driver update.
        if host.wsl:
            return "Run `wsl --shutdown` in Windows."
        return "Restart the machine."
    if "not found" in gpu.detail.lower() and host.container:
        return "Start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility."
    return "Run `nvidia-smi`. `sudo dmesg | grep NVRM` shows the kernel's messages."


def _missing(gpu: Gpu, host: Host) -> str:
    if host.wsl:
        return install(gpu, host, "")
    if not host.container:
        return f"Run {_node_commands(gpu, host)}, or restart."
    start = (
        "Start the container with --gpus all. For podman, or Docker with CDI, run `sudo"
        f" nvidia-ctk cdi generate --output={CDI_FILE}`, then --device nvidia.com/gpu=all."
    )
    if not _lacks_memory_node(gpu):
        return start
    return (
        f"Run `sudo nvidia-modprobe -u -c=0` on the machine itself, which creates the node. {start}"
    )


def _node_commands(gpu: Gpu, host: Host) -> str:
    """Return the commands that create the missing device nodes.

    One command creates the nodes of the cards and the control node, and another creates the nodes
    for unified memory. A single command cannot create both kinds, because with -u, the option -c
    refers to other nodes (nvidia-modprobe.c).
    """
    memory_node = "sudo nvidia-modprobe -u -c 0 -c 1"
    if _lacks_memory_node(gpu):
        return f"`{memory_node}`"
    cards = sum(g.vendor == "nvidia" and g.kernel_driver in (None, "nvidia") for g in host.gpus)
    minors = "".join(f" -c {minor}" for minor in (*range(cards), _CONTROL_MINOR))
    return f"`sudo nvidia-modprobe{minors}` and `{memory_node}`"


def _lacks_memory_node(gpu: Gpu) -> bool:
    """Return whether only the node for unified memory is missing.

    That node is checked last, so if `detail` mentions it, all other nodes exist.
    """
    return "/dev/nvidia-uvm " in gpu.detail


CUDA = Accelerator(
    name="cuda",
    vendor="nvidia",
    brand="NVIDIA",
    aliases=("nvidia", "geforce", "rtx", "gtx", "tesla", r"cu\d+", "cuda.*"),
    variants=("cuda-legacy",),
    builds="cu",
    pci=pci.NVIDIA,
    read=read,
    decide=decide,
    judge=judge,
    capability=capability,
    states_kernels=True,
    architecture=_architecture,
    code="(sm|compute)_",
    runs=_runs,
    shown=_shown,
    choosing=("CUDA_VISIBLE_DEVICES",),
    passed=(
        "CUDA_MPS_PIPE_DIRECTORY",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
    ),
    numbering={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    order=order,
    cdi="nvidia.com/gpu=all",
    install=install,
    fixes=fixes,
)
