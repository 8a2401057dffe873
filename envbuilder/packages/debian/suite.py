"""Lock Debian packages: read a suite's package lists, and choose files from them.

Package lists are read over HTTP from the machine's own mirror and checked against the sha256 in
their Release file. The Release file's signature is not checked: the mirror must be trusted when a
lock is made, but not when it is used, because the lock holds the sha256 of every file.
"""

from __future__ import annotations

import hashlib
import io
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from envbuilder.core import archives, decoding
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.http import open_session, read, reason, request
from envbuilder.core.text import clipped
from envbuilder.packages.debian import mirrors
from envbuilder.packages.debian.package import (
    Package,
    closure,
    keep_newest,
    minimal,
    parse_packages,
)
from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import MAIN, SECURITY, File

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.core import types
    from envbuilder.core.settings import Settings

_LARGEST = 128 << 20
"""Maximum bytes of a package list, unpacked; Debian's largest has 60 million."""
ARCHITECTURES: dict[str, str] = {"linux/amd64": "amd64", "linux/arm64": "arm64"}


class Suite(Struct, frozen=True, kw_only=True):
    """The packages of a suite for one platform, with its updates and security fixes."""

    packages: dict[str, Package]
    """The newest version of each name."""
    rolling: bool
    """Still changing: testing and unstable state no version, a released suite does."""


def lock(
    names: Sequence[str], suite: Suite, base: frozenset[str] = frozenset()
) -> tuple[File, ...]:
    """Return the .debs that bring `names` to any minimal system of the suite, sorted by name.

    With `base`, they go on the system that `lock_base` locked from the same lists, given by the
    names of its packages. Raise `InvalidError` for packages that are unavailable.
    """
    chosen = closure(names, suite.packages, base, rolling=suite.rolling)
    return tuple(_file(p) for p in sorted(chosen, key=lambda p: p.name))


def lock_base(names: Sequence[str], suite: Suite) -> tuple[File, ...]:
    """Return the .debs of a whole system with `names`, sorted by name; each has the role `base`.

    These are the packages of every minimal system of the suite, `names`, and all their
    dependencies.
    """
    chosen = minimal(suite.packages, names)
    return tuple(_file(suite.packages[name], "base") for name in sorted(chosen))


def _file(package: Package, role: types.Role = "") -> File:
    try:
        return decoding.convert(
            {
                "kind": "deb",
                "name": package.name,
                "version": package.version,
                "file": package.file,
                "sha256": package.sha256,
                "size": package.size,
                "source": package.source,
                "provenance": "read",
                "by": package.by,
                "role": role,
            },
            File,
        )
    except msgspec.ValidationError as error:
        raise BuildError(
            f"Debian's package list has an invalid entry: {package.file!r}: {error}"
        ) from error


def load(
    suite: str,
    platform: str,
    settings: Settings,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    read: Callable[[str], bytes] | None = None,
) -> Suite:
    """Read a suite's package lists.

    Raise `BuildError` if no mirror answers or a list is damaged, `InvalidError` for a platform that
    Debian has no packages for.
    """
    if platform not in ARCHITECTURES:
        raise InvalidError(f"{platform}: Debian packages exist only for Linux")
    architecture, read = ARCHITECTURES[platform], read or _read
    on_progress(f"reading Debian {suite}'s package lists for {platform}")
    universe: dict[str, Package] = {}
    rolling = True
    for name, source in (
        (suite, MAIN),
        (f"{suite}-updates", MAIN),
        (f"{suite}-security", SECURITY),
    ):
        release = _release(name, source, settings, read, required=name == suite)
        if release is None:
            continue
        root, text = release
        fields = mirrors.fields(text)
        if name == suite:
            rolling = "Version" not in fields
        by = f"{name} Release of {_date(fields.get('Date', ''))}"
        path = f"main/binary-{architecture}/Packages.xz"
        raw = _answer(read, f"{root}/dists/{name}/{path}")
        _verify(raw, text, path, name)
        pieces = archives.pieces(archives.unpacked(io.BytesIO(raw)), _LARGEST)
        try:
            keep_newest(universe, parse_packages(pieces, source=source, by=by))
        except archives.faults() as error:
            raise BuildError(
                f"Debian {name}: {path} cannot be read: {clipped(str(error), 200)}"
            ) from error
    return Suite(packages=universe, rolling=rolling)


def _release(
    name: str, source: str, settings: Settings, read: Callable[[str], bytes], *, required: bool
) -> tuple[str, str] | None:
    problem: Exception | None = None
    for root in mirrors.roots(source, settings):
        try:
            return root, read(f"{root}/dists/{name}/Release").decode("utf-8", "replace")
        except OSError as error:
            problem = error
    if required:
        cause = reason(problem) if problem else "there is none"
        raise BuildError(
            f"no Debian mirror answers for the suite {name} ({cause})",
            f"Set {indexes.variable(source)} to the URL of a mirror.",
        )
    return None


def _answer(read: Callable[[str], bytes], url: str) -> bytes:
    try:
        return read(url)
    except OSError as error:
        path = urlsplit(url).path
        raise BuildError(f"the Debian mirror does not serve {path}: {reason(error)}") from error


def _read(url: str) -> bytes:
    with open_session() as session, request(session, "GET", url) as response:
        response.raise_for_status()
        return read(response)


def _verify(raw: bytes, release: str, path: str, suite: str) -> None:
    listed = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(path)}$", release, re.MULTILINE)
    if listed is None:
        raise BuildError(f"Debian {suite}: the Release file does not list {path}")
    actual = hashlib.sha256(raw).hexdigest()
    if actual != listed[1]:
        raise BuildError(
            f"Debian {suite}: {path} has sha256 {actual}, but the Release file states {listed[1]}",
            "The mirror may be in the middle of an update, or its files were altered. Try again"
            " later, or use another mirror.",
        )


def _date(text: str) -> str:
    try:
        return parsedate_to_datetime(text).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return "an unknown date"
