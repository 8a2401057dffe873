"""The page of releases: which of them has a build for which GPU, from the tables."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core import resources, types
from envbuilder.host.accelerators import of_vendor
from envbuilder.host.model import Cpu, Gpu, Host
from envbuilder.profiles import fit, frameworks, profile as profiles, releases

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = """\
# Releases

These releases have kernels for some common GPUs, by build, with the newest driver.
`envbuilder profiles NAME` marks those that fit your machine. The data, with its sources, is in
`profiles/releases/`. Kernels that no source verifies are left out.
"""
NOTES: dict[types.Framework, str] = {
    "torch": "",
    "jax": """
All builds are on PyPI: `jaxlib`, and a plugin for each CUDA version. The plugin for CUDA 12 also
has kernels for Pascal and Volta GPUs. However, cuDNN 9.11 dropped these GPUs, so envbuilder says
that the plugin may work. 0.4.32 was withdrawn.
""",
    "tensorflow": """
All builds are on PyPI. On GPUs that this table lacks, kernels must be compiled from PTX. From 2.20
on, Pascal and Volta GPUs also need an older cuDNN. pip cannot install the libraries that
`[and-cuda]` requires before 2.15.0.post1, and 2.16.1 cannot find them. 2.16.2 is the first release
for ARM.
""",
}
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
    linux = Host(
        os="linux",
        machine="x86_64",
        platform="linux/amd64",
        libc="glibc 2.42",
        cpu=Cpu(flags=("sse2", "sse4_1", "avx")),
    )
    nvidia = {
        name: Gpu(vendor="nvidia", name=name, state="usable", sm=sm, driver_version="999")
        for name, sm in {**_NVIDIA, "GB10 (arm64)": "12.1"}.items()
    }
    amd = {
        name: Gpu(vendor="amd", name=name, state="usable", family=gfx) for name, gfx in _AMD.items()
    }
    arc = Gpu(
        vendor="intel",
        name="Arc B580",
        state="usable",
        support="validated",
        family="Arc B (BMG)",
    )
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
    return (*(-int(number) for number in re.findall("[0-9]+", served[0])), 1)


def served(framework: types.Framework, host: Host) -> str:
    """Return the releases that fit a host, by build; empty if there are none."""
    folders = profiles.search_path(None, resources.profiles_dir())
    row = of_vendor(host.gpus[0].vendor)
    name = frameworks.first_profile(framework, row.name) if row else ""
    if name not in profiles.names(folders):
        return ""
    found: dict[str, list[str]] = {}
    for build, level in fit.serving(profiles.load(name, folders), host):
        if level == "note":
            found.setdefault(build.build, []).append(build.release)
    cells = [f"{k}: {releases.ranges(framework, v)}" for k, v in sorted(found.items(), key=_newest)]
    return "; ".join(cells).replace(" to ", "–")


def _gpus(framework: types.Framework) -> Iterator[str]:
    """Yield the lines of the table of GPUs, one for those with the same releases."""
    alike: dict[str, list[str]] = {}
    for name, host in hosts().items():
        alike.setdefault(served(framework, host), []).append(name)
    yield from ("| GPU | build: releases |", "|---|---|")
    yield from (f"| {', '.join(names)} | {cell} |" for cell, names in alike.items() if cell)


def _of_torch() -> Iterator[str]:
    """Yield the lines of the table of PyTorch's builds, one for each release."""
    yield "| release | PyPI's build for Linux | other builds for Linux, x86-64 | Python |"
    yield "|---|---|---|---|"
    for release, group in groupby(releases.every("torch"), key=lambda build: build.release):
        builds = [build for build in group if build.platform == "linux/amd64"]
        (pypi,) = (build for build in builds if build.index == "default")
        others = ", ".join(build.build for build in reversed(builds) if build is not pypi)
        pythons = f"{pypi.pythons[0]}–{pypi.pythons[-1]}"
        yield f"| {release} | {pypi.build} | {others} | {pythons} |"


def _of_others(framework: types.Framework) -> Iterator[str]:
    """Yield the lines of a table of builds on PyPI, one for successive releases that are alike."""
    builds = [each for each in releases.every(framework) if each.platform == "linux/amd64"]
    rows = [
        (release, sorted(each.build for each in (first, *rest)), first.pythons)
        for release, (first, *rest) in groupby(builds, key=lambda build: build.release)
    ]
    yield "| releases | builds for Linux, x86-64 | Python |"
    yield "|---|---|---|"
    for (names, pythons), group in groupby(rows, key=lambda row: row[1:]):
        chosen = releases.ranges(framework, [release for release, *_ in group]).replace(" to ", "–")
        yield f"| {chosen} | {', '.join(names)} | {pythons[0]}–{pythons[-1]} |"


def page() -> str:
    """Return the page."""
    lines: list[str] = []
    for framework, note in NOTES.items():
        of_builds = _of_torch() if framework == "torch" else _of_others(framework)
        title = frameworks.FRAMEWORKS[framework].title
        lines += ["", f"## {title}", note, *_gpus(framework), "", *of_builds]
    return PAGE + "\n".join(lines) + "\n"
