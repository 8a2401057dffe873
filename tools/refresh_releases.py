"""Compare `profiles/releases/` with what the package index and its wheels say.

    python tools/refresh_releases.py                         releases, builds and Pythons, by names
    python tools/refresh_releases.py --wheels torch==2.7.1   also CUDA and kernels, from the wheels
    python tools/refresh_releases.py --pythons FILE          instead: pythons.csv from uv's list of
        builds, crates/uv-python/download-metadata.json in its repository

The index is the one that uv uses. Of a wheel only the parts that are needed are requested: what
states its CUDA, and the library with the list of its kernels (up to 60 MB). Prints each difference;
a person looks at it and writes the row, with its source. Exit code 1: there are differences.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envbuilder.core import archives, http, types
from envbuilder.packages import fetch, upstream
from envbuilder.packages.python import kernels as device_code
from envbuilder.packages.python.wheel_conflicts import RemoteFile
from envbuilder.profiles import releases

if TYPE_CHECKING:
    import zipfile

_JAX = ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin")
FIRST: dict[tuple[str, types.Platform], str] = {
    ("torch", "linux/amd64"): "1.11",
    ("torch", "linux/arm64"): "1.11",
    ("torch", "macos/arm64"): "1.12",  # 1.11 has no MPS
    **{(name, platform): "0.4.30" for name in _JAX for platform in types.PLATFORMS},
    # Until then, pip cannot install the libraries that [and-cuda] names.
    ("tensorflow", "linux/amd64"): "2.15.0.post1",
    # Until then, an empty package that requires tensorflow-cpu-aws.
    ("tensorflow", "linux/arm64"): "2.16.2",
    ("tensorflow", "macos/arm64"): "2.13",
    ("tensorflow-cpu", "linux/amd64"): "2.13",
}
"""The first release of a distribution that is in the table."""
LEFT_OUT = {
    *((name, "0.4.32", platform) for name in _JAX for platform in types.PLATFORMS),  # withdrawn
    # Its libraries do not look for NVIDIA's packages (tensorflow/tensorflow#63362).
    ("tensorflow", "2.16.1", "linux/amd64"),
}
"""Distributions, releases and platforms whose wheels are of no use."""
_PLATFORMS: dict[types.Platform, re.Pattern[str]] = {
    "linux/amd64": re.compile(r"(manylinux\w*|linux)_x86_64"),
    "linux/arm64": re.compile(r"manylinux\w*_aarch64"),
    "macos/arm64": re.compile(r"macosx_[0-9]+_[0-9]+_arm64"),
}
_LARGEST = 256 << 20
_KERNELS = re.compile(rb"(?:sm|compute)_[0-9]+a?(?: (?:sm|compute)_[0-9]+a?)*")
"""What `torch.cuda.get_arch_list()` splits: the longest such text in the library."""
_MACHINE_CODE = re.compile("sm_([0-9]+)[af]?")

Key = tuple[str, str, str]
"""Distribution, release and platform."""


class Differing(NamedTuple):
    """A fact of a release that the table and a source state differently."""

    where: str
    table: str
    source: str

    def __str__(self) -> str:
        """Return it as a line."""
        return f"{self.where}: the table has {self.table or 'nothing'}, and {self.source}"


def listed(distribution: str, files: Iterable[str]) -> dict[Key, set[str]]:
    """Return the Pythons of each release and platform, by names of wheels on an index."""
    pythons: dict[Key, set[str]] = {}
    for file in files:
        try:
            name, version, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        for platform, pattern in _PLATFORMS.items():
            key = (name, str(version), platform)
            first = FIRST.get((name, platform))
            too_old = first is None or version < Version(first)
            if name != distribution or too_old or version.is_prerelease or key in LEFT_OUT:
                continue
            for tag in tags:
                free_threaded = tag.abi.endswith("t")
                if pattern.fullmatch(tag.platform) and not free_threaded:
                    pythons.setdefault(key, set()).add(f"3.{tag.interpreter.removeprefix('cp3')}")
    return pythons


def with_those_between(found: dict[Key, set[str]], versions: Iterable[str]) -> dict[Key, set[str]]:
    """Return what is listed of JAX's parts, and the releases of JAX that use those before."""
    result = dict(found)
    last = ""
    for version in sorted(map(Version, {*versions})):
        key = "jaxlib", str(version), "linux/amd64"
        if key in found:
            last = str(version)
        elif last and key not in LEFT_OUT and not version.is_prerelease:
            result |= {
                (name, str(version), platform): pythons
                for (name, release, platform), pythons in found.items()
                if name in _JAX and release == last
            }
    return result


def distribution(framework: types.Framework, build: releases.Build) -> str:
    """Return the distribution on the package index whose wheels a build is."""
    is_cpu = build.build == "cpu"
    if framework == "jax":
        return "jaxlib" if is_cpu else f"jax-{build.build}-plugin"
    suffix = "-cpu" if framework == "tensorflow" and is_cpu else ""
    return f"{framework}{suffix if build.platform == 'linux/amd64' else ''}"


def stated() -> dict[Key, set[str]]:
    """Return what the tables say that the package index has, in the same form."""
    return {
        (distribution(framework, build), build.release, build.platform): set(build.pythons)
        for framework in types.FRAMEWORKS
        for build in releases.every(framework)
        if build.index == "default"
    }


def differences(table: dict[Key, set[str]], index: dict[Key, set[str]]) -> Iterator[Differing]:
    """Yield where the table and the index differ, the newest release last."""
    for key in sorted({*table, *index}, key=lambda key: (key[0], Version(key[1]), key[2])):
        ours = table.get(key, set())
        theirs = index.get(key, set())
        if ours != theirs:
            yield Differing(
                " ".join(key), _sorted(ours), f"the index {_sorted(theirs) or 'nothing'}"
            )


def kernels(library: bytes) -> str:
    """Return the compute capabilities that a library of PyTorch's Python binding names."""
    best = max(_KERNELS.findall(library), key=len, default=b"").decode()
    names = dict.fromkeys(re.findall(r"sm_([0-9]+)", best))
    return " ".join(f"{name[:-1]}.{name[-1]}" for name in names)


def in_fat_binaries(library: bytes) -> str:
    """Return the compute capabilities that a library has machine code for."""
    targets = {name for found in device_code.of_library((library,)) for name in found.split()}
    numbers = {int(match[1]) for match in map(_MACHINE_CODE.fullmatch, targets) if match}
    return " ".join(f"{sm // 10}.{sm % 10}" for sm in sorted(numbers))


def of_wheel(framework: types.Framework, build: releases.Build, url: str) -> Iterator[Differing]:
    """Yield where a wheel on the package index and its row differ."""
    where = f"{framework} {build.release} {build.platform}"
    with http.open_session() as session, archives.open_zip(RemoteFile(session, url)) as wheel:
        name, named = _READERS[framework](wheel)
    if name not in {"", build.build}:
        yield Differing(f"{where} build", build.build, f"the wheel {name}")
    # Kernels that cuDNN lacks are `partly`, and those for 7.0 serve from 7.5 on; JAX takes no 5.0.
    ours = {*build.kernels, *build.partly}
    also = {"5.2", "7.5"} if build.partly else set()
    if ours - also != {*named.split()} - also - ({"5.0"} if framework == "jax" else set()):
        yield Differing(f"{where} kernels", " ".join(build.kernels), f"the wheel {named}")


def _torch(wheel: zipfile.ZipFile) -> tuple[str, str]:
    version = archives.zip_content(wheel, "torch/version.py", 1 << 20).decode()
    cuda = re.search(r"^cuda(?:: [^=]+)? = '([0-9.]+)'", version, re.MULTILINE)
    library = "torch/lib/libtorch_python.so"
    named = kernels(archives.zip_content(wheel, library, _LARGEST)) if cuda else ""
    return f"cu{cuda[1].replace('.', '')}" if cuda else "cpu", named


def _jax(wheel: zipfile.ZipFile) -> tuple[str, str]:
    library = next(name for name in wheel.namelist() if name.endswith("/_prng.so"))
    return "", in_fat_binaries(archives.zip_content(wheel, library, _LARGEST))


def _tensorflow(wheel: zipfile.ZipFile) -> tuple[str, str]:
    path = "tensorflow/python/platform/build_info.py"
    text = archives.zip_content(wheel, path, 1 << 20).decode()
    cuda = re.search(r"'cuda_version', '([0-9]+)\.([0-9]+)", text)
    named = re.findall(r"'(?:sm|compute)_([0-9]+)([0-9])'", text)
    return f"cu{cuda[1]}{cuda[2]}" if cuda else "cpu", " ".join(".".join(sm) for sm in named)


_READERS = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}
"""Read build and kernels in a wheel; the name of a plugin of JAX says its build already."""


def _page(name: str) -> tuple[upstream.Offer, ...]:
    """Return what the package index that uv uses lists of a distribution."""
    index = next((place.url for place in fetch.places() if not place.flat), "")
    if not index:
        sys.exit("no package index is configured: set index-url for pip or uv")
    url = f"{index.rstrip('/')}/{name}/"
    return upstream.parse_page(upstream.read_url(url).decode(), url, name, "default")


def _sorted(pythons: set[str]) -> str:
    return " ".join(sorted(pythons, key=lambda each: int(each.partition(".")[2])))


def pythons(builds: Iterable[Mapping[str, Any]], source: str) -> Iterator[str]:
    """Yield the rows of `pythons.csv`: the newest build of each Python, the plainest of each."""
    machines: dict[tuple[str, ...], types.Platform] = {
        ("x86_64", "linux", "gnu"): "linux/amd64",
        ("aarch64", "linux", "gnu"): "linux/arm64",
        ("aarch64", "darwin", "none"): "macos/arm64",
    }
    newest: dict[tuple[int, types.Platform], Mapping[str, Any]] = {}
    for build in builds:
        arch = build["arch"]
        platform = machines.get((arch["family"], build["os"], build["libc"]))
        usual = not (arch["variant"] or build["prerelease"] or build["variant"])
        if build["name"] == "cpython" and platform and usual and 8 <= build["minor"] <= 14:
            before = newest.setdefault((build["minor"], platform), build)
            if build["patch"] > before["patch"]:
                newest[build["minor"], platform] = build
    yield "python,platform,file,sha256,source"
    for (minor, platform), build in sorted(newest.items(), key=lambda item: item[0]):
        file = unquote(build["url"].partition("/releases/download/")[2])
        yield f"3.{minor}.{build['patch']},{platform},{file},{build['sha256']},{source}"


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", action="append", default=[], metavar="FRAMEWORK==RELEASE")
    parser.add_argument("--pythons", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.pythons:
        builds = json.loads(options.pythons.read_text(encoding="utf-8")).values()
        print("\n".join(pythons(builds, "s96")))
        return 0
    of_index = {
        (framework, build)
        for framework in types.FRAMEWORKS
        for build in releases.every(framework)
        if build.index == "default"
    }
    if unknown := {*options.wheels} - {f"{name}=={build.release}" for name, build in of_index}:
        parser.error(f"the tables have no {', '.join(sorted(unknown))}: write its rows first")
    pages = {name: _page(name) for name in dict.fromkeys(name for name, _ in FIRST)}
    index: dict[Key, set[str]] = {}
    for name, page in pages.items():
        index |= listed(name, (offer.file for offer in page))
    index = with_those_between(index, (offer.version for offer in _page("jax")))
    found = [*differences(stated(), index)]
    for framework, build in of_index:
        if f"{framework}=={build.release}" in options.wheels and build.driver:
            python = build.pythons[0].replace(".", "")
            platform = _PLATFORMS[build.platform]
            for offer in pages[distribution(framework, build)]:
                tagged = f"-cp{python}-" in offer.file and platform.search(offer.file)
                if offer.version == build.release and tagged:
                    found += of_wheel(framework, build, offer.location)
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
