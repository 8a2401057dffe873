"""Compare `profiles/releases/` with what the package index and its wheels say.

    python tools/refresh_releases.py                  releases, builds and Pythons, by file names
    python tools/refresh_releases.py --wheels 2.7.1   also CUDA and kernels, read from the wheels

The index is the one that uv uses. Of a wheel only the parts that are needed are requested:
`torch/version.py`, and the library with the list of its kernels (30 to 60 MB). Prints each
difference; a person looks at it and writes the row, with its source. Exit code 1: there are
differences.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from envbuilder.core import archives, http
from envbuilder.packages import fetch
from envbuilder.packages.python import upstream
from envbuilder.packages.python.wheel_conflicts import RemoteFile
from envbuilder.profiles import releases

FIRST = {"linux/amd64": (1, 11), "linux/arm64": (1, 11), "macos/arm64": (1, 12)}
"""The first release in the table; 1.11 has no MPS."""
_PLATFORMS = {
    "linux/amd64": re.compile(r"(manylinux\w*|linux)_x86_64"),
    "linux/arm64": re.compile(r"manylinux\w*_aarch64"),
    "macos/arm64": re.compile(r"macosx_[0-9]+_[0-9]+_arm64"),
}
_FILE = re.compile(
    r"torch-([0-9.]+)(?:\+[\w.]+)?(?:-[0-9]+)?-cp3([0-9]+)-(?:cp3[0-9]+m?|none)-([\w.]+)\.whl"
)
_LIBRARY = "torch/lib/libtorch_python.so"
_LARGEST = 256 << 20
_KERNELS = re.compile(rb"(?:sm|compute)_[0-9]+a?(?: (?:sm|compute)_[0-9]+a?)*")
"""What `torch.cuda.get_arch_list()` splits: the longest such text in the library."""

Key = tuple[str, str]
"""Release and platform."""


class Differing(NamedTuple):
    """A fact of a release that the table and a source state differently."""

    where: str
    table: str
    source: str

    def __str__(self) -> str:
        """Return it as a line."""
        return f"{self.where}: the table has {self.table or 'nothing'}, and {self.source}"


def listed(files: Iterable[str]) -> dict[Key, set[str]]:
    """Return the Pythons of each release and platform, by names of wheels on an index."""
    pythons: dict[Key, set[str]] = {}
    for name in files:
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        release, python, tags = match.groups()
        number = tuple(map(int, release.split(".")))
        for platform, tag in _PLATFORMS.items():
            if number >= FIRST[platform] and any(map(tag.fullmatch, tags.split("."))):
                pythons.setdefault((release, platform), set()).add(f"3.{python}")
    return pythons


def stated() -> dict[Key, set[str]]:
    """Return what the table says that the package index has, in the same form."""
    return {
        (build.release, build.platform): set(build.pythons)
        for build in releases.every("torch")
        if build.index == "default"
    }


def differences(table: dict[Key, set[str]], index: dict[Key, set[str]]) -> Iterator[Differing]:
    """Yield where the table and the index differ, the newest release last."""
    for key in sorted({*table, *index}, key=lambda k: (*map(int, k[0].split(".")), k[1])):
        ours, theirs = table.get(key, set()), index.get(key, set())
        if ours != theirs:
            yield Differing(
                " ".join(key), _sorted(ours), f"the index {_sorted(theirs) or 'nothing'}"
            )


def kernels(library: bytes) -> str:
    """Return the compute capabilities that a library of PyTorch's Python binding names."""
    best = max(_KERNELS.findall(library), key=len, default=b"").decode()
    names = dict.fromkeys(re.findall(r"sm_([0-9]+)", best))
    return " ".join(f"{name[:-1]}.{name[-1]}" for name in names)


def of_wheel(build: releases.Build, url: str) -> Iterator[Differing]:
    """Yield where a wheel on the package index and its row differ."""
    where = f"{build.release} {build.platform}"
    with http.open_session() as session, archives.open_zip(RemoteFile(session, url)) as wheel:
        version = archives.zip_content(wheel, "torch/version.py", 1 << 20).decode()
        cuda = re.search(r"^cuda(?:: [^=]+)? = '([0-9.]+)'", version, re.MULTILINE)
        name = f"cu{cuda[1].replace('.', '')}" if cuda else "cpu"
        if name != build.build:
            yield Differing(f"{where} build", build.build, f"the wheel {name}")
        if cuda:
            named = kernels(archives.zip_content(wheel, _LIBRARY, _LARGEST))
            if named != " ".join(build.kernels):
                yield Differing(f"{where} kernels", " ".join(build.kernels), f"the wheel {named}")


def _page() -> tuple[upstream.Offer, ...]:
    """Return what the package index that uv uses lists of PyTorch."""
    index = next((place.url for place in fetch.places() if not place.flat), "")
    if not index:
        sys.exit("no package index is configured: set index-url for pip or uv")
    url = f"{index.rstrip('/')}/torch/"
    return upstream.parse_page(upstream.read_url(url).decode(), url, "torch", "default")


def _sorted(pythons: set[str]) -> str:
    return " ".join(sorted(pythons, key=lambda each: int(each.partition(".")[2])))


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", action="append", default=[], metavar="RELEASE")
    options = parser.parse_args()
    of_index = [build for build in releases.every("torch") if build.index == "default"]
    if unknown := {*options.wheels} - {build.release for build in of_index}:
        parser.error(f"the table has no {', '.join(sorted(unknown))}: write its rows first")
    page = _page()
    found = [*differences(stated(), listed(offer.file for offer in page))]
    for build in of_index:
        if build.release in options.wheels and build.build != "macos":
            python, platform = build.pythons[0].replace(".", ""), _PLATFORMS[build.platform]
            for offer in page:
                tagged = f"-cp{python}-" in offer.file and platform.search(offer.file)
                if offer.version == build.release and tagged:
                    found += of_wheel(build, offer.location)
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
