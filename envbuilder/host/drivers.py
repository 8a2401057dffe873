"""Explain how to install GPU drivers, and the libraries that no wheel contains.

The kernel driver belongs to the machine: not to a container, and under WSL not to Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.host import tables
from envbuilder.host.snapshot import version

if TYPE_CHECKING:
    from envbuilder.host.model import Gpu, Host

_RELEASE = re.compile(r"(Debian|Ubuntu|Fedora)\b[^0-9]*([0-9]{1,3}(?:\.[0-9]{2})?)?", re.ASCII)
_LINUX = re.compile(r"[0-9]+\.[0-9]+", re.ASCII)

# Branches of Debian's package nvidia-driver: packages.debian.org;
# neurite.github.io/debian-setup/0302-nvidia.
_DEBIAN_NVIDIA = {"12": "535", "13": "550"}
# Turing is the first generation that later branches and the open kernel modules support: NVIDIA's
# deprecation schedule (forums.developer.nvidia.com 60588), open-gpu-kernel-modules issue 19.
_TURING = (7, 5)
_LAST_BEFORE_TURING = "580"

# The kernel driver of each family, and the first Linux version whose xe binds without force_probe:
# require_force_probe in drivers/gpu/drm/xe/xe_pci.c of Linux 6.12 and of 6.17. i915 is the
# default for older families (Phoronix, i915 against Xe on Meteor Lake, 2025).
_XE_SINCE = {"Arc B (BMG)": "6.12", "Lunar Lake": "6.12", "Panther Lake": "6.17"}
_I915 = ("Arc A", "Flex", "Meteor Lake", "Arrow Lake")
# Neither in-tree driver supports it; Intel has packages (dgpu-docs.intel.com).
_OWN_PACKAGES = "Data Center GPU Max"

# packages.ubuntu.com: 25.10 has Intel's compute-runtime 25.31; 24.04 has 23.43, which predates
# Lunar Lake and Arc B. PyTorch's install_xpu.sh uses the PPA.
_UBUNTU_HAS = (25, 10)
_PPA_SERVES = (24, 4)
_PPA = "sudo add-apt-repository ppa:kobuk-team/intel-graphics"
_DEBIAN_HAS = (14,)


def release(host: Host) -> tuple[str, str]:
    """Return distribution and version, such as ("Ubuntu", "24.04"); empty if they are unknown."""
    match = _RELEASE.match(host.os_version or "")
    if host.os == "linux" and match:
        return match[1], match[2] or ""
    return "", ""


def install(gpu: Gpu, host: Host, needed: str = "") -> str:
    """Return how to get a kernel driver for a GPU; `needed` is the oldest sufficient version."""
    if gpu.vendor == "nvidia":
        return nvidia(gpu, host, needed)
    if gpu.vendor == "amd":
        return amd(host)
    return intel(gpu, host)


def nvidia(gpu: Gpu, host: Host, needed: str = "") -> str:
    """Return how to install NVIDIA's driver; `needed` is the oldest sufficient version."""
    newer = needed and f" {needed} or newer"
    if host.wsl:
        # docs.nvidia.com/cuda/wsl-user-guide: a Linux driver would hide the one from Windows.
        return (
            f"Install NVIDIA's driver{newer} in Windows (nvidia.com/drivers), not inside WSL;"
            " then run `wsl --shutdown` there."
        )
    if host.container:
        return f"Install NVIDIA's driver{newer} on the machine itself; a container uses that one."
    if tables.tegra_of_sm(gpu.sm or ""):
        # docs.nvidia.com/jetson: the driver is a part of Jetson Linux, and packages for servers
        # do not contain one for it.
        return "Install JetPack 7 or newer, whose Jetson Linux brings the driver."
    text = f"{_nvidia_packages(gpu, host, needed, newer)}, then restart"
    if needed:
        text += f"; `nvidia-smi` must report{newer}"
    if _before_turing(gpu):
        return f"{text}. Branch {_LAST_BEFORE_TURING} is the last that drives this GPU."
    return f"{text}."


def _nvidia_packages(gpu: Gpu, host: Host, needed: str, newer: str) -> str:
    name, number = release(host)
    if name == "Ubuntu":
        # It selects the branch that a GPU needs; ubuntu/ubuntu-release-notes issue 213 calls it the
        # supported way.
        return "Run `sudo ubuntu-drivers install` (package ubuntu-drivers-common)"
    has = name == "Debian" and _DEBIAN_NVIDIA.get(number)
    if has and (version(needed) or (0,)) <= (version(has) or (0,)):
        return "Run `sudo apt install nvidia-driver` (in Debian's component non-free)"
    if has and not _before_turing(gpu):
        # docs.nvidia.com/datacenter/tesla/driver-installation-guide
        return (
            f"Debian {number} has {has}, and {needed} or newer is needed: add NVIDIA's repository"
            f" (developer.download.nvidia.com/compute/cuda/repos/debian{number}, package"
            " cuda-keyring) and run `sudo apt install nvidia-open`"
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


def amd(host: Host) -> str:
    """Return how to get the kernel driver for an AMD GPU; every Linux distribution has it."""
    if host.container:
        return "Load amdgpu on the machine itself; a container uses the machine's kernel."
    return (
        "Run `sudo modprobe amdgpu`; if nothing changes, `sudo dmesg | grep amdgpu` shows why: a"
        " GPU that is newer than Linux needs a newer one."
    )


def intel(gpu: Gpu, host: Host) -> str:
    """Return how to get a kernel driver for an Intel GPU."""
    if host.container:
        return "Load i915 or xe on the machine itself; a container uses the machine's kernel."
    family = gpu.family or ""
    if family.startswith(_OWN_PACKAGES):
        return "Install Intel's kernel driver for it (intel-i915-dkms, see dgpu-docs.intel.com)."
    since = _XE_SINCE.get(family)
    match = _LINUX.match(host.kernel or "")
    if since and match and (version(match[0]) or ()) < (version(since) or ()):
        return (
            f"Update Linux: {since} is the first whose xe drives it by itself, this is"
            f" {host.kernel}{_newer_kernel(host)}."
        )
    driver = "xe" if since else "i915"
    if not since and not family.startswith(_I915):
        return "Update Linux: i915 or xe of a newer one may know it (`sudo dmesg` shows why not)."
    return (
        f"Run `sudo modprobe {driver}`; if nothing changes, `sudo dmesg | grep {driver}` shows why."
    )


def _newer_kernel(host: Host) -> str:
    name, number = release(host)
    if (name, number) == ("Ubuntu", "24.04"):
        return "; `sudo apt install linux-generic-hwe-24.04` has a newer one"
    if name == "Debian":
        return "; backports have a newer one"
    return ""


def level_zero(host: Host) -> str:
    """Return how to install the Level Zero loader and Intel's driver for it."""
    image = "use --backend docker, whose image brings them"
    if not host.containers.has_engine:
        image += ", once a container engine runs"
    name, number = release(host)
    commands = _level_zero_commands(name, number)
    if commands:
        return f"Run {commands}, or {image}."
    if name == "Debian":
        return f"Debian {number} has no package of the driver: {image}, or update to Debian 14."
    return (
        "Install the Level Zero loader and Intel's compute-runtime"
        f" (github.com/intel/compute-runtime), or {image}."
    )


def _level_zero_commands(name: str, number: str) -> str:
    """Return the commands that install both on a distribution; empty if it has no packages."""
    current = version(number)
    install = "`sudo apt install libze1 libze-intel-gpu1`"
    if name == "Debian" and (current is None or current >= _DEBIAN_HAS):
        return install
    if name == "Ubuntu" and current and current >= _UBUNTU_HAS:
        return install
    if name == "Ubuntu" and current and current >= _PPA_SERVES:
        return f"`{_PPA}` and {install} (Ubuntu {number}'s own packages are too old)"
    if name == "Fedora":
        # The loader is oneapi-level-zero, the driver intel-level-zero.
        return "`sudo dnf install intel-compute-runtime intel-level-zero oneapi-level-zero`"
    return ""
