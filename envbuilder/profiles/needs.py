"""Determine what wheels need from a host, and whether its GPUs meet these needs.

The lock contains the versions of the framework, CUDA and ROCm. The file names of its wheels specify
which versions of the C library and macOS they require. Tables list the kernels in each build and
the driver that each CUDA version needs. The profile's own `requires` takes precedence, because its
build may be custom. A GPU is judged by the rules in its vendor's row in `host.accelerators`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core.errors import first
from envbuilder.host import tables
from envbuilder.host.accelerators import ACCELERATORS, of_gpus as rows_of_gpus, of_vendor
from envbuilder.host.gpus.accelerator import (
    LEVELS,
    Accelerator,
    Finding,
    Level,
    Needs,
    Packages,
    named,
    worst,
)
from envbuilder.host.gpus.nvidia import sm_of
from envbuilder.profiles import lock as profile_lock, releases

if TYPE_CHECKING:
    from envbuilder.core import types
    from envbuilder.host.model import Gpu, Host
    from envbuilder.profiles.profile import Profile

_GLIBC = re.compile(r"\bmanylinux_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
_MACOS = re.compile(r"\bmacosx_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
# PEP 600: the glibc versions of legacy manylinux tags.
_OLD_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}


@lru_cache(maxsize=64)  # asked for every backend of every profile, several times in one command
def of_wheels(wheels: tuple[str, ...]) -> Needs:
    """Return the versions of macOS and glibc that wheels need, based on their file names."""
    return Needs(
        macos=_newest(min(_tagged(_MACOS, name), default=None) for name in wheels),
        glibc=_newest(map(_oldest_glibc, wheels)),
    )


def _tagged(pattern: re.Pattern[str], name: str) -> list[tuple[int, int]]:
    """Return the versions in a wheel's platform tags.

    A host needs to satisfy only one of these versions.
    """
    return [(int(major), int(minor)) for major, minor in pattern.findall(name.rpartition("-")[2])]


def _oldest_glibc(name: str) -> tuple[int, int] | None:
    versions = [version for old, version in _OLD_GLIBC.items() if old in name]
    return min([*_tagged(_GLIBC, name), *versions], default=None)


def _newest(versions: Iterable[tuple[int, int] | None]) -> str:
    """Return the newest of several versions, or an empty string if none is known.

    An unknown version is given as None.
    """
    newest = max(filter(None, versions), default=None)
    if newest:
        return f"{newest[0]}.{newest[1]}"
    return ""


def cuda_runtime(versions: Mapping[str, str]) -> tuple[str, str]:
    """Return the major and minor version of the CUDA runtime among the packages.

    Both are empty if there is no CUDA runtime.
    """
    for name, version in versions.items():
        if name.startswith("nvidia-cuda-runtime"):
            major, _, rest = version.partition(".")
            return major, rest.partition(".")[0]
    return "", ""


def build_of(
    framework: types.Framework, versions: Mapping[str, str], platform: types.Platform | None
) -> releases.Build | None:
    """Return the build of a framework that is among the packages, or None if it is unknown.

    `versions` contains the version of each package. The CUDA version of a build is that of the CUDA
    runtime in the same environment. Without a CUDA runtime, JAX and TensorFlow either use no GPU or
    use the system's libraries, which are unknown.
    """
    major, minor = cuda_runtime(versions)
    distributions: dict[types.Framework, dict[str, str]] = {
        "torch": {"torch": ""},
        "jax": {"jaxlib": "cpu"},
        "tensorflow": {"tensorflow": "cpu", "tensorflow-cpu": "cpu"},
    }
    if major:
        distributions["torch"] = {"torch": f"cu{major}{minor}"}
        distributions["jax"] = {f"jax-cuda{major}-plugin": f"cuda{major}"}
        distributions["tensorflow"]["tensorflow"] = ""
    for name, build in distributions[framework].items():
        if name in versions:
            return releases.of_version(framework, versions[name], platform, build)
    return None


def of_packages(
    framework: types.Framework,
    versions: Mapping[str, str],
    platform: types.Platform | None,
    *,
    wsl: bool,
) -> Needs:
    """Return what the framework build among the packages needs from a host's GPUs and driver.

    The result includes the kernels that the build contains. If the build is unknown, the result
    contains only the driver: the oldest one that supports the CUDA runtime. The version of cuDNN
    determines which GPUs are only partly supported.
    """
    build = build_of(framework, versions, platform)
    if build is None:
        major, _ = cuda_runtime(versions)
        driver = tables.cuda_driver(int(major), wsl=wsl) if major.isdecimal() else None
        return Needs(driver=driver or "")
    needs = build.needs(wsl=wsl)
    for name, version in versions.items():
        if name.startswith("nvidia-cudnn"):
            every = (*needs.partly, *needs.kernels)
            oldest = sm_of(tables.cudnn_sm(version))
            partly = tuple(sm for sm in every if sm_of(sm) < oldest)
            needs = replace(needs, kernels=every[len(partly) :], partly=partly)
    return needs


_WORKS: tuple[Level, ...] = ("note", "warning")
_SEEN = ("unsupported", "unlisted", "no-instances")
"""Obstacles that make a GPU unusable, although frameworks still see the GPU."""


def needs(
    profile: Profile, lock: profile_lock.Lock | None, platform: types.Platform, *, wsl: bool = False
) -> Needs:
    """Return what a profile's wheels need from hosts of one platform.

    The wheels are those for the first Python version in the lock. If the lock has no files, the
    needs are those of the build for the profile's release. Without a lock, only the profile's own
    requirements are considered. `wsl` means that the host is WSL, where the Windows driver is used.
    """
    requires = profile.requires
    target = profile_lock.first(lock, platform)
    locked = Needs()
    if target is not None:
        wheels = of_wheels(tuple(f.basename for f in target.of_kind("wheel")))
        if ACCELERATORS[profile.accelerator].vendor:
            locked = of_packages(profile.framework, target.versions, platform, wsl=wsl)
        locked = replace(locked, macos=wheels.macos, glibc=wheels.glibc)
    elif lock and (build := profile.build_on(platform)):
        locked = build.needs(wsl=wsl)
    kernels = requires.kernels
    if platform == "linux/arm64":
        kernels = requires.kernels_arm64 or kernels
    if kernels:
        partly = requires.kernels_partly
        locked = replace(locked, kernels=kernels, partly=partly, ptx=requires.kernels_ptx)
    return replace(
        locked,
        driver=requires.driver or locked.driver,
        macos=requires.macos or locked.macos,
    )


def findings(profile: Profile, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    """Return the findings about a host's GPUs for a profile.

    Only the GPUs that work best are considered. If the framework would use other GPUs besides
    these, environment variables hide them from the framework. If no GPU works, the findings are
    about the most capable one. The result is empty if the profile needs no GPU.
    """
    row = ACCELERATORS[profile.accelerator]
    if row.vendor is None:
        return []
    result = of_gpus(row, host, needs, native=native)
    if native:
        result += row.native(host)
    return result


def of_gpus(row: Accelerator, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    """Return the findings about the GPUs on which wheels with these needs would run."""
    gpus = [gpu for gpu in host.gpus if gpu.vendor == row.vendor]
    if not gpus:
        unknown = [gpu for gpu in host.gpus if gpu.vendor == "unknown"]
        if unknown:
            # Worded alike for all vendors, so that one cause is one sentence.
            text = f"whether there is a GPU is unknown: {unknown[0].detail.rstrip('.')}"
            return [Finding("warning", text, "unread", unknown[0])]
        return [Finding("no", f"no {row.brand} GPU was found", "no-gpu")]
    judged = [(gpu, row.judge(gpu, needs, native)) for gpu in gpus]
    judged.sort(key=lambda pair: row.capability(pair[0]), reverse=True)
    best = min((worst(findings) for _, findings in judged), key=LEVELS.index)
    used = []
    result = []
    for gpu, findings in judged:
        if worst(findings) == best:
            if best not in _WORKS:
                return findings
            used.append(gpu)
            result += findings
    return [*result, *code_findings(used, needs.packages), *_left_out(row, gpus, used)]


def _left_out(row: Accelerator, gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> list[Finding]:
    """Return a finding about GPUs that the framework would use although other GPUs work better.

    The finding says how these GPUs are hidden from the framework, or that they cannot be hidden.
    The list is empty if there are no such GPUs.
    """
    # Those that it does not see need not be hidden: no driver, no node, another container's.
    others = [
        gpu
        for gpu in gpus
        if gpu not in selected and (gpu.state != "present" or gpu.obstacle in _SEEN)
    ]
    if not others:
        return []
    order = row.order(gpus, selected)
    names = " and ".join(map(named, others))
    if order is None:
        text = f"{names} cannot be hidden from the framework, because their order is unknown"
        return [Finding("warning", text, "left-out", others[0])]
    if not order:
        return []
    numbers = ",".join(str(number) for number, gpu in enumerate(order) if gpu in selected)
    variables = row.numbering | {row.choosing[0]: numbers}
    setting = " ".join(f"{name}={value}" for name, value in variables.items())
    text = f"{names} not used: envbuilder sets {setting}"
    return [Finding("note", text, "left-out", others[0], variables)]


# Whether the device code in packages runs on a GPU


_LITTLE = 0.05
"""Minimum share of a package's device code that must run on a GPU. If the share is smaller, the
package is assumed not to support the GPU, and the code that does run to belong to a bundled
library."""
_MOST_SHOWN = 12
"""Maximum number of targets in a message. The author of a wheel is untrusted and may list many."""


def code_findings(gpus: Iterable[Gpu], packages: Packages) -> list[Finding]:
    """Return a warning for each package that contains hardly any device code for one of the GPUs.

    GPUs of unknown architecture are skipped.
    """
    findings = []
    for gpu in gpus:
        row = of_vendor(gpu.vendor)
        if row and row.code and row.architecture(gpu):
            findings += [
                Finding("warning", _sentence(package, code, gpu, row), "package")
                for package, code in packages.items()
                if kernel_coverage(code, gpu) < _LITTLE
            ]
    return findings


def kernel_coverage(code: Mapping[str, int], gpu: Gpu) -> float:
    """Return the share of a package's device code that runs on a GPU, from 0 to 1.

    Only code for the GPU's vendor is considered. The GPU's architecture must be known. Return 0 if
    the package has device code only for other vendors, and 1 if it has no device code at all.
    """
    row = of_vendor(gpu.vendor)
    sizes = _of_row(code, row) if row else {}
    if row is None or not sizes:
        return float(not code)
    fitting = 0
    for names, size in sizes.items():
        if any(row.runs(name, gpu) for name in names.split()):
            fitting += size
    return fitting / sum(sizes.values())


def _of_row(code: Mapping[str, int], row: Accelerator) -> dict[str, int]:
    """Return only the device code for GPUs of the vendor in `row`.

    The values of `code` are sizes in bytes.
    """
    if not row.code:
        return {}
    return {names: size for names, size in code.items() if re.match(row.code, names)}


def _sentence(package: str, code: Mapping[str, int], gpu: Gpu, row: Accelerator) -> str:
    names = " ".join(_of_row(code, row)).split()
    targets = first(list(dict.fromkeys(row.shown(names))), _MOST_SHOWN)
    others = [f"{other.brand}'s GPUs" for other in rows_of_gpus() if _of_row(code, other)]
    return (
        f"{package} has no kernels for {gpu.name} ({row.architecture(gpu)}), only for"
        f" {targets or ' and '.join(others)}: lock another version of it, or remove it"
    )
