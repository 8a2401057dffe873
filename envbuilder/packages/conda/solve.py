"""Solve and lock a profile's conda packages for each of its platforms and Python versions.

The solver gets the properties of the machine from the profile, never from this machine. Therefore,
a lock for a GPU, another processor or a Mac can be made anywhere.
"""

from __future__ import annotations

import asyncio
import datetime
import tempfile
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import msgspec

from envbuilder.core import decoding, types
from envbuilder.core.errors import BuildError, InvalidError, UnreachableError, clipped
from envbuilder.core.files import file_sha256
from envbuilder.packages.conda import prefixes
from envbuilder.packages.conda.lock import SCHEMA, SUBDIRS, Lock, Package, Target, inputs_digest
from envbuilder.packages.python import indexes
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.lock import Reason, reason
from envbuilder.profiles.profile import Profile, require_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.core.settings import Settings

_SECONDS = 300
"""Maximum number of seconds for the solver. Real environments need only a few."""
_CHANNEL_SECONDS = 900
"""Maximum number of seconds for reading the channels and running the solver."""


class UnsolvableError(Exception):
    """An error that is raised when no choice of packages satisfies a target."""

    def __init__(self, reason: Reason, hint: str) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.hint = hint


class Channels:
    """A context manager for reading conda channels. Each channel is read once, on first use."""

    def __enter__(self) -> Self:
        # Temporary: py-rattler 0.28 fails if a plain web server answers a later request with "304
        # Not Modified".
        self._folder = tempfile.TemporaryDirectory(prefix="envbuilder-conda-")
        return self

    def __exit__(self, *about: object) -> None:
        self._folder.cleanup()

    @cached_property
    def gateway(self) -> Any:
        """The py-rattler object that reads channels."""
        import rattler

        return rattler.Gateway(cache_dir=Path(self._folder.name))


def lock(
    profile: Profile,
    settings: Settings,
    channels: Channels,
    previous: Lock | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    origin: Profile | None = None,
) -> Lock:
    """Create the conda lock of a profile, keeping packages in `previous` if they still fit.

    If the profile is a project's variant, `origin` is the original profile. A variant's lock may
    omit targets that cannot be solved, but not all of its targets.

    Raise `InvalidError` if the profile does not use conda or its requirements cannot be satisfied.
    Raise `BuildError` if a channel cannot be read or provides no hash for a package, and
    `ToolError` if py-rattler is not installed.
    """
    require_backend(profile, "conda")
    prefixes.require_rattler()
    urls = {name: indexes.url(name, settings) for name in profile.conda.channels}
    solver = _Solver(profile, urls, channels.gateway, origin)
    targets, missing = asyncio.run(_targets(solver, previous, on_progress))
    return Lock(
        schema=SCHEMA,
        profile=profile.name,
        inputs=inputs_digest(profile),
        channels=profile.conda.channels,
        targets=targets,
        missing=missing,
    )


def specs(profile: Profile, python: str) -> tuple[str, ...]:
    """Return the requirements for Python and the profile's packages, in conda's syntax."""
    return (f"python {python}.*", *profile.conda.packages)


async def _targets(
    solver: _Solver, previous: Lock | None, on_progress: Callable[[str], None]
) -> tuple[tuple[Target, ...], dict[str, Reason]]:
    """Solve each target of the profile.

    Return the solved targets, and the reasons why the other targets cannot be solved.
    """
    profile = solver.profile
    before = {(t.platform, t.python): t.packages for t in (previous.targets if previous else ())}
    targets: list[Target] = []
    failures: list[InvalidError] = []
    missing: dict[str, Reason] = {}
    for platform in profile.platforms:
        for python in profile.python.supported:
            on_progress(f"{profile.name}: solving {platform} with Python {python}")
            target_name = f"{platform} with Python {python}"
            locked = before.get((platform, python), ())
            try:
                packages = await solver.packages(platform, python, locked)
            except UnsolvableError as problem:
                message = f"{target_name}: cannot be solved: {problem.reason.printed()}"
                failures.append(InvalidError(message, problem.hint))
                missing[f"{platform} {python}"] = problem.reason
                if solver.origin is None:
                    raise failures[0] from problem
                continue
            except Exception as error:
                raise _explained(
                    error, f"{profile.name}: {target_name}", solver.channels
                ) from error
            targets.append(
                Target(
                    platform=platform,
                    python=python,
                    virtual_packages=profile.conda.virtual_packages.get(platform, {}),
                    packages=tuple(sorted(packages, key=lambda p: p.name)),
                )
            )
    if not targets:
        raise failures[0]
    return tuple(targets), missing


class _Solver(NamedTuple):
    """The inputs of the solver that are the same for all targets of a profile."""

    profile: Profile
    channels: Mapping[str, str]
    """Channel name → URL."""
    gateway: Any
    origin: Profile | None

    async def packages(
        self, platform: types.Platform, python: str, locked: Sequence[Package]
    ) -> list[Package]:
        """Return the packages for a target.

        Raise `UnsolvableError` if there is no solution. Errors from py-rattler are raised
        unchanged.
        """
        import rattler
        from rattler.exceptions import SolverError

        sources = list(map(rattler.Channel, self.channels.values()))
        subdirs: list[Any] = [SUBDIRS[platform], "noarch"]
        virtual = self.profile.conda.virtual_packages.get(platform, {})
        try:
            async with asyncio.timeout(_CHANNEL_SECONDS):
                solution = await rattler.solve(
                    sources,
                    # Not strict: conda's users write `python 3.11.*`; types.CondaSpec is the check.
                    [rattler.MatchSpec(spec, strict=False) for spec in specs(self.profile, python)],
                    gateway=self.gateway,
                    platforms=subdirs,
                    locked_packages=await _still_offered(locked, self.gateway, sources, subdirs),
                    virtual_packages=[_virtual(*v) for v in sorted(virtual.items())],
                    timeout=datetime.timedelta(seconds=_SECONDS),
                )
        except SolverError as error:
            who = f"project on profile '{self.origin.name}'" if self.origin else "profile"
            requested = clipped(", ".join(self.profile.conda.packages), 300)
            having = ", ".join(f"{name} {text}" for name, text in sorted(virtual.items()))
            raise UnsolvableError(
                reason("no combination of packages satisfies the requests", proof=str(error)),
                f"The {who} requests {requested}. conda.virtual_packages promises"
                f" {having or 'nothing'} on the machines. For a package that is on PyPI, use pip:.",
            ) from error
        packages = [_package(record, self.channels, SUBDIRS[platform]) for record in solution]
        require_no_framework(self.profile, packages)
        return packages


def require_no_framework(profile: Profile, packages: Sequence[Package]) -> None:
    """Raise `UnsolvableError` if conda packages contain another copy of the profile's framework."""
    framework = FRAMEWORKS[profile.framework]
    names = framework.conda.keys() | framework.conda_cores
    present = {package.name: package for package in packages if package.name in names}
    if not present:
        return
    others = [package for package in packages if package.name not in present]
    every = product(sorted(present), others)
    pairs = ((package, name) for name, package in every if name in package.dependencies)
    dependent, name = next(pairs, (None, min(present)))
    what = f"{name} {present[name].version} of {present[name].channel}"
    says = f"{dependent.name} {dependent.version} requires {what}" if dependent else what
    raise UnsolvableError(
        reason(f"{says}, but {framework.title} comes from the profile's wheels"),
        f"List {dependent.name if dependent else name} under pip: in environment.yml instead.",
    )


async def _still_offered(
    locked: Sequence[Package], gateway: Any, sources: list[Any], subdirs: list[Any]
) -> list[Any]:
    """Return the channels' current records for the packages in an earlier lock.

    Without this check, the solver would trust the lock even if a channel no longer has a package,
    or now has different bytes under the package's name.
    """
    hashes = {p.as_file.file: p.sha256 for p in locked}
    names = sorted({p.name for p in locked})
    if not names:
        return []
    offered = []
    for repodata in await gateway.query(sources, subdirs, names, recursive=False):
        for record in repodata:
            sha256 = hashes.get(f"{record.subdir}/{record.file_name}")
            if sha256 and (not record.sha256 or record.sha256.hex() == sha256):
                offered.append(record)
    return offered


def _virtual(name: str, text: str) -> Any:
    import rattler

    version, _, build = text.partition("=")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build or "0")
    )


def _package(record: Any, channels: Mapping[str, str], subdir: types.CondaSubdir) -> Package:
    """Return a solved record as a locked package.

    Raise `BuildError` if the channel's data is invalid.
    """
    pairs = ((n, u) for n, u in channels.items() if record.url.startswith(f"{u}/"))
    name, root = next(pairs, ("", ""))
    if not root:
        raise BuildError(f"{record.file_name} is in none of the requested channels")
    shown = f"{name}: {record.file_name}"
    if record.subdir not in {subdir, "noarch"}:
        raise BuildError(
            f"{shown}: offered by the channel for {subdir}, but its record says {record.subdir}"
        )
    if record.url != f"{root}/{record.subdir}/{record.file_name}":
        raise BuildError(f"{shown}: the package is not in its platform's folder, {record.subdir}")
    sha256 = record.sha256.hex() if record.sha256 else ""
    data = prefixes.package(record, name, _hash(record.url, sha256, shown))
    try:
        return decoding.convert(data, Package)
    except msgspec.ValidationError as error:
        raise BuildError(f"{shown}: its record cannot be used: {error}") from error


def _hash(url: str, sha256: str, shown: str) -> str:
    """Return the sha256 that a channel specifies for an archive.

    A local archive is hashed as well, because py-rattler does not check it. Raise `BuildError` if a
    remote channel specifies no sha256, or if a local archive's sha256 differs from the one that its
    channel specifies.
    """
    if urlsplit(url).scheme != "file":
        if not sha256:
            raise BuildError(
                f"{shown}: cannot be locked, because its channel provides no sha256",
                "Index the channel again, or use another channel for the package.",
            )
        return sha256
    try:
        actual = file_sha256(Path(unquote(urlsplit(url).path)))
    except OSError as error:
        raise BuildError(f"{shown}: cannot be read: {error.strerror}") from error
    if sha256 and sha256 != actual:
        raise BuildError(
            f"{shown}: the channel lists sha256 {sha256}, but the archive has {actual}",
            "The archive was changed after the channel was indexed.",
        )
    return actual


def _explained(error: Exception, where: str, channels: Iterable[str]) -> Exception:
    """Return envbuilder's own error for a failure in py-rattler.

    Return any other error unchanged.
    """
    from rattler.exceptions import GatewayError

    variables = ", ".join(map(indexes.variable, channels))
    hint = f"Check the network, or set a mirror with {variables}."
    if isinstance(error, TimeoutError):
        seconds = f"{_CHANNEL_SECONDS:g} s"
        return UnreachableError(f"{where}: reading the channels took longer than {seconds}", hint)
    if isinstance(error, GatewayError):
        return UnreachableError(f"{where}: a channel cannot be read: {str(error).strip()}", hint)
    return error
