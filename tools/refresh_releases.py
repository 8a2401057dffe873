"""Compare `profiles/releases/` with what the package index and its wheels say.

    python tools/refresh_releases.py                  releases, builds and Pythons, by file names
    python tools/refresh_releases.py --wheels 2.7.1   also CUDA and kernels, read from the wheels

The index is pip's. Of a wheel only the parts that are needed are requested: `torch/version.py`, and
the library with the list of its kernels (30 to 60 MB). Prints each difference; a person looks at it
and writes the row, with its source. Exit code 1: there are differences.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from envbuilder.core import archives, http, pip
from envbuilder.packages.python import upstream
from envbuilder.packages.python.wheel_conflicts import RemoteFile

TABLE = Path(__file__).resolve().parent.parent / "profiles" / "releases" / "torch-builds.csv"
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
        release = tuple(map(int, match[1].split("."))) if match else ()
        for platform, tag in _PLATFORMS.items() if match else ():
            if release >= FIRST[platform] and any(
                tag.fullmatch(each) for each in match[3].split(".")
            ):
                pythons.setdefault((match[1], platform), set()).add(f"3.{match[2]}")
    return pythons


def stated(rows: Iterable[dict[str, str]]) -> dict[Key, set[str]]:
    """Return what the table says that the package index has, in the same form."""
    return {
        (row["release"], row["platform"]): set(row["pythons"].split())
        for row in rows
        if row["index"] == "default"
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


def of_wheel(row: dict[str, str], url: str) -> Iterator[Differing]:
    """Yield where a wheel on the package index and its row differ."""
    where = f"{row['release']} {row['platform']}"
    with http.open_session() as session, archives.open_zip(RemoteFile(session, url)) as wheel:
        version = archives.zip_content(wheel, "torch/version.py", 1 << 20).decode()
        cuda = re.search(r"^cuda(?:: [^=]+)? = '([0-9.]+)'", version, re.MULTILINE)
        build = f"cu{cuda[1].replace('.', '')}" if cuda else "cpu"
        if build != row["build"]:
            yield Differing(f"{where} build", row["build"], f"the wheel {build}")
        if cuda:
            found = kernels(archives.zip_content(wheel, _LIBRARY, _LARGEST))
            if found != row["kernels"]:
                yield Differing(f"{where} kernels", row["kernels"], f"the wheel {found}")


def _sorted(pythons: set[str]) -> str:
    return " ".join(sorted(pythons, key=lambda each: int(each.partition(".")[2])))


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", action="append", default=[], metavar="RELEASE")
    options = parser.parse_args()
    rows = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
    url = f"{(pip.sources().index_url or 'https://pypi.org/simple').rstrip('/')}/torch/"
    page = upstream.parse_page(upstream.read_url(url).decode(), url, "torch", "default")
    found = [*differences(stated(rows), listed(offer.file for offer in page))]
    for row in rows:
        if (
            row["release"] in options.wheels
            and row["index"] == "default"
            and row["build"] != "macos"
        ):
            tag = f"-cp{row['pythons'].split()[0].replace('.', '')}-"
            platform = _PLATFORMS[row["platform"]]
            fitting = (o for o in page if o.version == row["release"] and tag in o.file)
            offer = next(o for o in fitting if platform.search(o.file))
            found += of_wheel(row, offer.location)
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
