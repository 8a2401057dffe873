"""Find the system libraries that wheels need, by reading the headers of the wheels' own libraries.

An ELF file's dynamic section names the libraries that the loader looks for. Wheels contain most of
these libraries, but not those that every desktop system has (such as libraries for displays, FFmpeg
or OpenMP). If these are missing, an import fails. Only the libraries listed in
`profiles/names/libraries.yaml` are considered. Whether other libraries are missing becomes clear
only when the package is imported.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.requirements import table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from zipfile import ZipFile, ZipInfo

    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File
    from envbuilder.profiles.profile import Profile

Needs = dict[str, tuple[str, ...]]
"""Path of a library in a wheel → the names of the libraries that it needs."""


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of system libraries that wheels need but do not contain."""

    debian: dict[str, types.DebianPackage]
    opencv: frozenset[str]
    wheels: dict[types.Distribution, tuple[types.DebianPackage, ...]]


system_libraries = cache(partial(table, "libraries.yaml", _Table))
_COMPILER = "g++"
_OPENCV = ("opencv-python", "opencv-contrib-python")
"""Packages that also have a variant without window support, called NAME-headless."""
_OPTIONAL = re.compile(r"(.*/)?(plugins|tests?)/.*|numba/.*(tbb|omp)pool\..*")
"""Matches libraries that a package looks for but can work without."""
_VARIANT = re.compile(r"(cpu|cuda|hip|rocm|xpu)?[0-9]*(?=\.so)")
"""Matches the part in which the names of interchangeable libraries differ. A package loads the
first of these libraries that is available."""
_SYSTEM = re.compile(
    r"(ld-linux.*|lib(c|dl|m|pthread|rt|util|z|gcc_s|stdc\+\+|python.*|cuda|nvidia-ml))\.so.*"
)
"""Matches libraries that every system or every GPU driver has."""
_CACHE = Path("/etc/ld.so.cache")
"""The loader's cache of library paths on systems with glibc."""
_IDENTITY = b"\x7fELF\x02\x01"
"""The first bytes of a 64-bit little-endian ELF file."""
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")
"""The type, offset in the file, address and size of a segment."""
_ENTRY = struct.Struct("<qQ")
_DYNAMIC = 2
_NEEDED = 1
_STRINGS = 5
_LARGEST = 1 << 16
_MOST_STRINGS = 1 << 24
_LONGEST = 256
"""Maximum number of bytes of a single string. `_LARGEST` is the maximum for a table, and
`_MOST_STRINGS` that for all strings (PyTorch's have 5 MB). There are limits because the wheel's
author is untrusted."""


def needed(wheel: ZipFile, member: ZipInfo) -> tuple[str, ...]:
    """Return the names of the libraries that a file in a wheel requires.

    The result is empty if the file is not a 64-bit ELF file.
    """
    with wheel.open(member) as file:
        return needed_by(file)


def needed_by(file: IO[bytes]) -> tuple[str, ...]:
    """Return the names of the libraries that another library requires.

    The result is empty if `file` is not a 64-bit ELF file. Raise `struct.error` if the file is
    damaged.
    """
    head = file.read(64)
    if not head.startswith(_IDENTITY):
        return ()
    file.seek(struct.unpack_from("<Q", head, 32)[0])
    size, count = struct.unpack_from("<HH", head, 54)
    segments = [*_SEGMENT.iter_unpack(file.read(min(size * count, _LARGEST)))]
    entries: list[tuple[int, int]] = []
    for kind, offset, _, length in segments:
        if kind == _DYNAMIC:
            file.seek(offset)
            entries += _ENTRY.iter_unpack(file.read(min(length, _LARGEST)))
    places = [at for tag, at in entries if tag == _NEEDED]
    text = b""
    strings = dict(entries).get(_STRINGS, -1)
    for _, offset, address, length in segments:
        if address <= strings < address + length and not text:
            file.seek(offset + strings - address)
            text = file.read(min(max(places, default=0) + _LONGEST, _MOST_STRINGS))
    return tuple(
        text[at : at + _LONGEST].partition(b"\0")[0].decode(errors="replace") for at in places
    )


def missing(needs: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the system libraries that a wheel needs but does not contain.

    `needs` maps the path of each library in the wheel to the libraries that it needs. Only
    libraries with a known Debian package are returned.
    """
    return system_libraries().debian.keys() & unmet(needs)


def unmet(needs: Mapping[str, Iterable[str]], brought: Iterable[str] = ()) -> frozenset[str]:
    """Return the needed libraries that are neither in the wheel nor available on every system.

    `needs` maps the path of each library in the wheel to the libraries that it needs. `brought`
    contains other libraries that are present. If the wheel contains several variants of the same
    library, only the variant with the fewest unknown requirements is considered.
    """
    present = {path.rpartition("/")[2] for path in needs}.union(brought)
    debian = system_libraries().debian.keys()
    variants: dict[str, list[frozenset[str]]] = defaultdict(list)
    for path, needed in needs.items():
        if not _OPTIONAL.fullmatch(path):
            others = frozenset(n for n in needed if not _SYSTEM.fullmatch(n)) - present
            variants[_VARIANT.sub("", path)].append(others)
    best = [
        min(alternatives, key=lambda o: (len(o - debian), len(o)))
        for alternatives in variants.values()
    ]
    return frozenset().union(*best)


def of_loader() -> bytes:
    """Return the content of the dynamic loader's cache, which lists this machine's libraries.

    The result is empty on systems without glibc.
    """
    return _CACHE.read_bytes() if _CACHE.is_file() else b""


def bringing(libraries: Iterable[str], packages: Collection[str], *, in_image: bool) -> str:
    """Return instructions for installing missing libraries, either in images or on this machine.

    If one of `packages` is OpenCV, the variant without window support is suggested as well.
    """
    debian = sorted({system_libraries().debian[name] for name in libraries})
    text = f"For this machine (Debian, Ubuntu):\n  sudo apt install {' '.join(debian)}"
    if in_image:
        text = "For images, write into envbuilder.yaml, and lock again:"
        text += f"\n  system_packages: [{', '.join(debian)}]"
    for name in _OPENCV:
        if name in packages and system_libraries().opencv.issuperset(libraries):
            text += f"\nOr use OpenCV without windows:\n  overrides: {{{name}: {name}-headless}}"
    return text


def _missing(file: File, store: Store) -> set[str]:
    """Return the system libraries that a wheel needs but does not contain.

    Raise `OSError` if the wheel is not in the store.
    """
    from envbuilder.packages.python import kernels

    read = partial(kernels.in_wheel, read=needed)
    return missing(store.derived(file.sha256, "libraries-1", Needs, read))


def of_image(
    profile: Profile, files: Iterable[File], store: Store, earlier: Mapping[str, Collection[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the Debian packages that wheels need in an image.

    Each package is mapped to the names of the wheels that need it. Nothing is downloaded to
    determine the packages. For a wheel that is not in the store, the shipped table and the packages
    of the `earlier` lock are used. Packages that the project excludes are left out.
    """
    from envbuilder.packages.python import kernels

    table = system_libraries()
    needs: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for file in kernels.others(profile, files):
        try:
            packages = {table.debian[name] for name in _missing(file, store)}
        except (InvalidError, OSError):
            packages = {name for name, wheels in earlier.items() if file.name in wheels}
            packages.update(table.wheels.get(file.name, ()))
        for name in packages:
            if types.canonical(name) not in profile.resolution.exclude:
                needs[name] += (file.name,)
    return dict(sorted(needs.items()))


def warnings(
    profile: Profile,
    files: Collection[File],
    store: Store,
    asked: Iterable[str] = (),
    *,
    in_image: bool,
) -> Iterator[str]:
    """Yield a warning for each wheel that needs missing system libraries.

    If `in_image` is set, the image is checked for the libraries, and otherwise this machine. Each
    wheel is read only once. `asked` contains the Debian packages requested for the image, which may
    have other names in the suite.
    """
    from envbuilder.packages.python import kernels  # `run` needs the table alone

    debian = system_libraries().debian
    have = {file.name for file in files}.union(asked)
    cache = b"" if in_image else of_loader()
    for file in kernels.others(profile, files) if in_image or cache else ():
        with suppress(InvalidError, OSError):
            lacks = sorted(
                name
                for name in _missing(file, store)
                if debian[name] not in have and f"{name}\0".encode() not in cache
            )
            if lacks:
                way = bringing(lacks, [file.name], in_image=in_image)
                yield f"{file.name} lacks {', '.join(lacks)}. {way}"
    compilers = FRAMEWORKS[profile.framework].kernel_compilers.get(profile.accelerator, ())
    if in_image and have.intersection(compilers) and _COMPILER not in have:
        way = bringing([_COMPILER], (), in_image=True)
        yield f"torch.compile and Triton's kernels lack a compiler. {way}  # 0.3 GB"
