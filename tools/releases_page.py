"""The page of PyTorch's releases: which of them has a build for which GPU, from the tables."""

from __future__ import annotations

import re
from itertools import groupby

from msgspec.structs import replace

from envbuilder.host.model import Gpu, Host
from envbuilder.profiles import accelerators, fit, releases

PAGE = """\
# PyTorch's releases

The releases that have kernels for some common GPUs, by build, given the newest driver.
`envbuilder profiles show NAME` marks those that fit your machine. The facts, each with its source,
are in `profiles/releases/`; kernels that no source verifies are left out.

"""
_NVIDIA = {
    "Tesla P100": "6.0",
    "Tesla V100": "7.0",
    "Tesla T4": "7.5",
    "GeForce RTX 3090": "8.6",
    "GeForce RTX 4090": "8.9",
    "GeForce RTX 5090": "12.0",
    "H100": "9.0",
    "B200": "10.0",
}
_AMD = {"Radeon RX 6800": "gfx1030", "Radeon RX 7900": "gfx1100", "Instinct MI300X": "gfx942"}


def hosts() -> dict[str, Host]:
    """Return hosts with one GPU each, by the name of the GPU."""
    linux = Host(os="linux", machine="x86_64", platform="linux/amd64", libc="glibc 2.42")
    nvidia = {
        name: Gpu(vendor="nvidia", name=name, state="usable", sm=sm, driver_version="999")
        for name, sm in {**_NVIDIA, "GB10 (arm64)": "12.1"}.items()
    }
    amd = {
        name: Gpu(vendor="amd", name=name, state="usable", family=gfx) for name, gfx in _AMD.items()
    }
    arc = Gpu(vendor="intel", name="Arc B580", state="usable", support="validated")
    gpus = {**nvidia, **amd, "Arc B580": arc}
    made = {name: replace(linux, gpus=(gpu,)) for name, gpu in gpus.items()}
    arm = replace(linux, machine="aarch64", platform="linux/arm64")
    made["GB10 (arm64)"] = replace(arm, gpus=(nvidia["GB10 (arm64)"],))
    apple = Gpu(vendor="apple", name="Apple M1", state="usable")
    made["Apple M1, macOS 14"] = Host(
        os="macos", os_version="14.0", machine="arm64", platform="macos/arm64", gpus=(apple,)
    )
    return made


def _newest(served: tuple[str, list[str]]) -> tuple[int, ...]:
    """Sort builds of one kind by their version, the newest first."""
    return tuple(-int(number) for number in re.findall("[0-9]+", served[0]))


def page() -> str:
    """Return the page."""
    lines = ["| GPU | build: releases |", "|---|---|"]
    for name, host in hosts().items():
        accelerator = accelerators.of_vendor(host.gpus[0].vendor)
        rated = fit.serving(accelerator, host) if accelerator else ()
        served: dict[str, list[str]] = {}
        for build, level in rated:
            if level == "note":
                served.setdefault(build.build, []).append(build.release)
        cells = [
            f"{key}: {releases.ranges(names)}" for key, names in sorted(served.items(), key=_newest)
        ]
        lines.append(f"| {name} | {'; '.join(cells)} |")
    lines += ["", "| release | PyPI's build for Linux | other builds for Linux, x86-64 | Python |"]
    lines += ["|---|---|---|---|"]
    for release, group in groupby(releases.every("torch"), key=lambda build: build.release):
        builds = [build for build in group if build.platform == "linux/amd64"]
        (pypi,) = (build for build in builds if build.index == "default")
        others = ", ".join(build.build for build in reversed(builds) if build is not pypi)
        pythons = f"{pypi.pythons[0]}–{pypi.pythons[-1]}"
        lines.append(f"| {release} | {pypi.build} | {others} | {pythons} |")
    return PAGE + "\n".join(lines) + "\n"
