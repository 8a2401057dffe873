"""Conda locks, which are separate files that list the conda packages beneath a profile's wheels.

This module also contains the steps that install from a conda lock, the checks of whether a host
satisfies a lock's requirements, and the exports for conda's own tools.

`NAME.conda.json` is stored beside `NAME.json`. Shipped profiles have no conda lock, because the
contents of channels are known only on a machine that can read the channels. On such a machine, the
file is created by `lock --backend conda` and, in projects that need conda packages, by `lock`. Like
every lock, it identifies files by sha256 and symbolic source, so it is valid with any mirror.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, types
from envbuilder.core.errors import Hint, InvalidError, is_public, public
from envbuilder.host import tables
from envbuilder.host.gpus.accelerator import Finding
from envbuilder.host.snapshot import version
from envbuilder.packages.python import indexes
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.profile import Profile

    Judge = Callable[[Host, str], Finding | None]

SCHEMA = 1
SUBDIRS: dict[types.Platform, types.CondaSubdir] = {
    "linux/amd64": "linux-64",
    "linux/arm64": "linux-aarch64",
    "macos/arm64": "osx-arm64",
}
"""Platform → its name in conda channels."""
_COMMAND = ("lock", "--backend", "conda")
_DEPENDENCY = re.compile(r"[A-Za-z0-9_.-]+")


class Package(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A conda package, with all the information that is needed before its archive is opened."""

    name: types.CondaName
    version: types.FileVersion
    build: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.+]+\Z")]
    build_number: Annotated[int, Meta(ge=0)]
    subdir: types.CondaSubdir
    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+!~-]*\.(conda|tar\.bz2)\Z")]
    channel: types.Source
    sha256: types.Sha256
    size: types.FileSize | None
    """Size in bytes; null if the channel does not state it."""
    depends: tuple[types.Sentence, ...] = ()
    constrains: tuple[types.Sentence, ...] = ()
    noarch: Literal["", "generic", "python"] = ""
    timestamp: int | None = None
    """Build time in milliseconds since 1970, as stated by the channel."""
    license: types.Sentence = ""

    @property
    def dependencies(self) -> frozenset[str]:
        """The names of the packages that this package depends on.

        The names are matched by a pattern, because some entries in `depends` have no space between
        the name and the version.
        """
        return frozenset(match[0] for match in map(_DEPENDENCY.match, self.depends) if match)

    @property
    def as_file(self) -> profile_lock.File:
        """The package as a locked file, for use in the store, the SBOM and the plan."""
        return profile_lock.File(
            kind="conda",
            name=self.name,
            version=self.version,
            file=f"{self.subdir}/{self.file}",
            sha256=self.sha256,
            size=self.size,
            source=self.channel,
            provenance="read",
            by=f"the repodata of {self.channel}",
        )


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All conda packages for one platform and Python version, sorted by name."""

    platform: types.Platform
    python: types.PythonVersion
    virtual_packages: dict[types.VirtualPackage, types.VirtualVersion]
    """The properties of the machine that the solver assumed. The host must have them as well."""
    packages: tuple[Package, ...]

    @property
    def subdir(self) -> types.CondaSubdir:
        """The platform's name in conda channels."""
        return SUBDIRS[self.platform]


class Lock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conda lock of a profile."""

    schema: int
    profile: types.Name
    inputs: types.Sha256
    """The sha256 of the parts of the profile that determine the solution."""
    channels: tuple[types.Source, ...]
    targets: tuple[Target, ...]
    missing: dict[str, Reason] = {}
    """Targets of a project that cannot be solved (such as "linux/arm64 3.12") → the reason. The
    lock is valid for the other targets."""


def inputs_digest(profile: Profile) -> str:
    """Return the sha256 of the parts of a profile that determine the solution."""
    decides = {
        "conda": msgspec.to_builtins(profile.conda),
        "python": profile.python.supported,
        "platforms": profile.platforms,
    }
    return hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()


def beside(path: Path) -> Path:
    """Return the path of the conda lock that belongs to the lock at `path`."""
    return path.with_suffix(".conda.json")


def path_for(name: str, library: Library) -> Path | None:
    """Return the path of the conda lock of a profile or variant, or None if there is none."""
    return next(filter(Path.is_file, map(beside, library.lock_places(name))), None)


def load(path: Path) -> Lock:
    """Read a conda lock.

    Raise `InvalidError` if the lock is damaged or its schema is unknown.
    """
    return parse(profile_lock.content(path, _COMMAND), path)


def find(name: str, library: Library) -> Lock | None:
    """Return the conda lock of a profile or variant, or None if there is no conda lock."""
    path = path_for(name, library)
    return load(path) if path else None


def find_for_use(name: str, library: Library) -> Lock | None:
    """Return the conda lock of a profile or variant, after verifying its signature if required.

    Return None if there is no conda lock. Raise `SignatureError` if the signature is refused.
    """
    path = path_for(name, library)
    if path is None:
        return None
    read = profile_lock.content(path, _COMMAND)
    library.require_signature(path, read)
    return parse(read, path)


def parse(read: bytes, path: Path) -> Lock:
    """Parse the content of the conda lock at `path`.

    The errors raised are the same as for `load`.
    """
    return decoding.decode_lock(read, path, Lock, SCHEMA, _check, "conda lock", _COMMAND)


def _check(lock: Lock, path: Path) -> None:
    """Raise `InvalidError` if the lock has errors that the types cannot express.

    Examples are a duplicate package and a package for another platform.
    """
    pairs = [(t.platform, t.python) for t in lock.targets]
    if not pairs or len(set(pairs)) != len(pairs):
        raise InvalidError(f"{path}: targets: empty, or with a platform and Python twice")
    for target in lock.targets:
        label = f"{path}: {target.platform} Python {target.python}"
        names = Counter(p.name for p in target.packages)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise InvalidError(f"{label}: {twice[0]} appears twice")
        for package in target.packages:
            stem = package.file.removesuffix(".conda").removesuffix(".tar.bz2")
            if stem != f"{package.name}-{package.version}-{package.build}":
                raise InvalidError(
                    f"{label}: {package.file}: the file name does not match name, version and build"
                )
            if package.subdir not in {target.subdir, "noarch"}:
                raise InvalidError(f"{label}: {package.file} is a package for {package.subdir}")
        python = next((p.version for p in target.packages if p.name == "python"), "")
        if not python.startswith(f"{target.python}."):
            raise InvalidError(
                f"{label}: expected Python {target.python}, found {python or 'none'}"
            )


def dump(lock: Lock) -> str:
    """Return a lock as text with one package per line, so that diffs are readable."""
    return profile_lock.dump(lock, "packages")


def select(lock: Lock, platform: str, python: str) -> Target:
    """Return the conda packages for a platform and a Python version.

    Raise `InvalidError` if the lock does not cover them.
    """
    for target in lock.targets:
        if (target.platform, target.python) == (platform, python):
            return target
    covered = ", ".join(f"{t.platform} Python {t.python}" for t in lock.targets)
    reason = lock.missing.get(f"{platform} {python}")
    raise InvalidError(
        f"the conda lock of '{lock.profile}' has no packages for {platform} with Python {python}"
        + (f": {reason.printed()}" if reason else ""),
        f"It covers: {covered}. {profile_lock.OTHER_PYTHON}",
    )


def require_usable(profile: Profile, lock: Lock | None) -> Lock:
    """Return the conda lock if it is up to date.

    Raise `InvalidError` if the lock is missing, or stale because the profile has changed.
    """
    if lock is not None and lock.inputs == inputs_digest(profile):
        return lock
    problem = (
        f"the conda lock of '{profile.name}' is stale: the profile changed after it was made"
        if lock
        else f"profile '{profile.name}' has no conda lock: make it where the channels can be read"
    )
    raise InvalidError(problem, Hint("Make the lock", (*_COMMAND, "--profile", profile.name)))


# The steps that make a conda environment


class InstallConda(types.Action, frozen=True, kw_only=True):
    """A step that installs conda packages into a prefix, without running any of their scripts."""

    packages: tuple[Package, ...]
    subdir: types.CondaSubdir
    folder: str
    """The folder that contains the archives, which are at FOLDER/CHANNEL/SUBDIR/FILE."""
    channels: dict[types.Source, str]
    """Channel → the channel's public URL, which is written to the records in the prefix."""
    env: str
    """The path at which the prefix is created."""
    prefix: str
    """The final path of the prefix, which is written to the prefix's files."""
    cache: str
    """The temporary folder for this installation, which is not shared with other prefixes."""


class Rehome(types.Action, frozen=True, kw_only=True):
    """A step that makes a virtual environment use an interpreter at its final path."""

    env: str
    settings: dict[str, str]
    """The settings to write to pyvenv.cfg."""
    python: str
    """The path of the interpreter, to which `bin/python` links."""


class WriteActivation(types.Action, frozen=True, kw_only=True):
    """A step that writes the scripts that activate a conda environment with or without conda."""

    env: str
    """The path at which the environment is created."""
    prefix: str
    """The final path of the environment."""
    venv: str
    """The final path of the virtual environment inside the conda environment; empty if there is
    none."""
    variables: dict[types.Variable, str]
    preload: tuple[str, ...]
    """The final paths of the libraries to preload."""


# Whether a host has what a lock assumes, its virtual packages: what could not be read is reported
# as unknown, never as absent.


_LEVELS = {
    "x86_64_v3": frozenset({"avx", "avx2", "fma", "f16c"}),
    "x86_64_v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
"""x86-64 microarchitecture level → the CPU flags that hosts at this level report."""
_ANY = frozenset({"x86_64", "aarch64", "arm64", "m1"})
"""Processor names that are valid for every machine of a platform."""


def findings(target: Target, host: Host) -> Iterator[Finding]:
    """Yield the reasons why a host cannot, or might not be able to, use a target.

    A reason has the status `impossible` or `no`, or the status `warning` if a property of the host
    is unknown.
    """
    for name, required in sorted(target.virtual_packages.items()):
        judge = _JUDGES.get(name)
        if judge is None:
            text = f"it is unknown whether this machine has {name} {required}"
            yield Finding("warning", text, "unread")
            continue
        needed, systems = _SYSTEMS.get(name, ("", {host.os}))
        if host.os not in systems:
            text = (
                f"the conda packages are for {needed}, but this host is {host.os} on {host.machine}"
            )
            yield Finding("impossible", text, "platform")
            continue
        if finding := judge(host, required):
            yield finding


def _at_least(name: str, actual: str | None, required: str) -> Finding | None:
    least = version(required)
    current = version(actual)
    if current is None or least is None:
        return Finding(
            "warning", f"whether {name} is {required} or newer could not be read", "system-unread"
        )
    if current < least:
        return Finding(
            "impossible",
            f"{name} {actual} is older than {required}, for which the conda packages are locked",
            "system-old",
        )
    return None


def _glibc(host: Host, required: str) -> Finding | None:
    name, _, number = (host.libc or "glibc").partition(" ")
    if name != "glibc":
        return Finding(
            "impossible",
            f"the C library is {name}, but the conda packages need glibc",
            "libc-other",
        )
    return _at_least("glibc", number, required)


def _linux(host: Host, required: str) -> Finding | None:
    numbers = re.match(r"[0-9]+(\.[0-9]+)*", host.kernel or "", re.ASCII)
    return _at_least("the Linux kernel", numbers[0] if numbers else None, required)


def _archspec(host: Host, wanted: str) -> Finding | None:
    required = wanted.partition("=")[2]
    flags = _LEVELS.get(required)
    if required in _ANY or not required:
        return None
    if flags is None or host.cpu.flags is None:
        return Finding(
            "warning", f"it is unknown whether the CPU has all features of {required}", "unread"
        )
    missing = sorted(flags - set(host.cpu.flags))
    if missing:
        return Finding(
            "no",
            f"the conda packages are locked for {required}, but the CPU has no {missing[0]}",
            "cpu-flags",
        )
    return None


def _cuda(host: Host, required: str) -> Finding | None:
    gpus = [gpu for gpu in host.gpus if gpu.vendor in {"nvidia", "unknown"}]
    if not gpus:
        return Finding(
            "no",
            f"no NVIDIA GPU was found, but the conda packages are locked for CUDA {required}",
            "no-gpu",
        )
    major = required.partition(".")[0]
    oldest = tables.cuda_driver(int(major), wsl=host.wsl) if major.isdecimal() else None
    drivers = [v for v in (version(gpu.driver_version) for gpu in gpus) if v is not None]
    needed = version(oldest)
    if needed is None or not drivers:
        return Finding(
            "warning",
            f"whether NVIDIA's driver supports CUDA {required} could not be read",
            "driver-unread",
        )
    if max(drivers) < needed:
        newest = ".".join(map(str, max(drivers)))
        return Finding(
            "no",
            f"NVIDIA driver {newest} is older than {oldest}, which CUDA {required} needs",
            "driver-old",
        )
    return None


_JUDGES: dict[str, Judge] = {
    "__archspec": _archspec,
    "__cuda": _cuda,
    "__glibc": _glibc,
    "__linux": _linux,
    "__osx": lambda host, required: _at_least("macOS", host.os_version, required),
    "__unix": lambda *_: None,
}
_SYSTEMS = {
    "__glibc": ("glibc", {"linux"}),
    "__linux": ("Linux", {"linux"}),
    "__osx": ("macOS", {"macos"}),
    "__unix": ("a Unix", {"linux", "macos"}),
}
"""Virtual package → a description of the systems that have it, and these systems' names."""


# What conda, mamba and micromamba are given: an environment.yml. It names channels by URLs that are
# valid for any reader: the shipped URL, or for a channel of the user's own the configured one. They
# have no credentials. A channel is written as a bare name only if conda resolves it to that URL.


ANACONDA = "https://conda.anaconda.org"
"""The base URL at which conda and mamba look for a channel given only by name."""


class Channel(Struct, frozen=True, kw_only=True):
    """A conda channel, with the name and URL to use in files that are rendered for other users."""

    name: types.Source
    url: str
    """The URL without credentials."""
    private: bool
    """Whether the configured URL contains credentials, in which case other users need their own."""

    @property
    def entry(self) -> str:
        """The channel's entry in a list of channels.

        This is the channel's name if conda resolves the name to the channel's URL. Otherwise, it is
        the URL.
        """
        return self.name if self.url == f"{ANACONDA}/{self.name}" else self.url


def channel_urls(names: Iterable[str], settings: Settings) -> dict[str, str]:
    """Return the channels' URLs by name, for use in files for other users.

    A shipped channel has its shipped URL even if a mirror is configured. Any other channel has the
    URL that the user configured. Raise `InvalidError` for a name without a URL.
    """
    shipped = indexes.upstreams()
    return {n: shipped[n].url if n in shipped else indexes.url(n, settings) for n in names}


def channels(names: Iterable[str], urls: Mapping[str, str]) -> tuple[Channel, ...]:
    """Return the channels in the form used in rendered files.

    Raise `InvalidError` if a channel is a local folder.
    """
    result = []
    for name in names:
        url = urls[name]
        if urlsplit(url).scheme == "file":
            raise InvalidError(
                f"the channel '{name}' is a folder on this machine, so files for other"
                " machines cannot refer to it",
                f"Serve it over HTTP, and set {indexes.variable(name)} to its URL.",
            )
        result.append(Channel(name=name, url=public(url).rstrip("/"), private=not is_public(url)))
    return tuple(result)


def cuda(profile: Profile) -> str:
    """Return the CUDA version that the driver must support according to the profile.

    Return an empty string if the profile requires no such version.
    """
    versions = (v.get("__cuda", "") for v in profile.conda.virtual_packages.values())
    return next(filter(None, versions), "")
