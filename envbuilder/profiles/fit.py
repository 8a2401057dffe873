"""Decide whether a profile fits a host, with which backend, and why.

The functions have no side effects: they take data and return sentences that state the facts. All
commands use them, so that their results agree. Anything unknown results in a warning at best: a
driver that could not be read, a GPU that no table lists, or a device node with unknown permissions.
There is also a warning if an image is needed and no container engine responds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.host import tables
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.host.gpus.accelerator import (
    LEVELS,
    Accelerator,
    Finding,
    Level,
    Needs,
    Packages,
    worst,
)
from envbuilder.host.model import TRACKED_FLAGS, X86_FLAGS, Host
from envbuilder.host.snapshot import version
from envbuilder.profiles import backends, lock as profile_lock, needs, releases
from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

    Offers = Iterable[tuple[releases.Chosen, str]]
    """A profile's releases, newest first. Each release comes with the reason why the project cannot
    use it, or with an empty string if the project can use it."""

_NONE: Packages = {}
Verdict = Literal["fits", "warnings", "no"]
_DECISIVE: dict[Verdict, tuple[Level, ...]] = {
    "fits": ("note",),
    "warnings": ("no", "warning"),
    "no": ("no",),
}
VERDICTS: dict[Level, Verdict] = {
    "note": "fits",
    "warning": "warnings",
    "no": "no",
    "impossible": "no",
}
_WORKS: tuple[Level, ...] = ("note", "warning")
_NEWEST_DRIVER = "9999"
"""Version that is newer than that of any driver, used to check whether a newer driver would
help."""
OF_RELEASE = frozenset({"kernels", "kernels-ptx", "kernels-partly", "driver-old"})
"""Codes of findings about a framework's build. Another release may not have these problems."""


class BackendFit(Struct, frozen=True, kw_only=True):
    """The findings about using a profile with one backend on one host."""

    backend: str
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The most severe level of the findings, which determines the verdict."""
        return worst(self.findings)

    @property
    def works(self) -> bool:
        """Whether there is no known obstacle.

        A container engine that does not respond is not regarded as an obstacle.
        """
        return self.level in _WORKS

    @property
    def lacks_engine(self) -> bool:
        """Whether the backend needs a container engine and none responds."""
        return any(finding.code == "engine" for finding in self.findings)

    @property
    def lacks_more(self) -> bool:
        """Whether there is an obstacle or an unconfirmed fact besides the missing engine."""
        return any(f.level != "note" and f.code != "engine" for f in self.findings)

    @property
    def decisive(self) -> list[Finding]:
        """The findings of the most severe level. They determine the verdict."""
        return [finding for finding in self.findings if finding.level == self.level]


class Fit(Struct, frozen=True, kw_only=True):
    """The verdict on whether a profile fits a host, with one sentence for each reason.

    The verdict is `warnings` if no obstacle is known but something could not be confirmed, or if
    the profile needs an image and no container engine responds. `impossible` is true if the profile
    cannot even be built on this host.
    """

    profile: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    impossible: bool = False
    backend: str | None = None
    """The judged backend: the requested one, or the one that works best on the host."""
    lacks_engine: bool = False
    """Whether a responding container engine is the only thing missing."""
    environment: dict[str, str] = {}
    """Environment variables that hide unusable GPUs. Commands that run the profile on this host set
    them."""
    workaround: str = field(default="", name="way_out")
    """How to use the profile on this host if it does not work natively, in one or two sentences."""


def judge_backends(
    profile: Profile, host: Host, lock: Lock | None = None
) -> tuple[BackendFit, ...]:
    """Return a profile's fit with each backend that may be used without being requested.

    The best fit comes first. conda is included only if the profile has no other backend, because
    conda needs its own lock.
    """
    fits = []
    for name in backends.automatic(profile.backends):
        result = findings(profile, host, name, lock)
        if backends.makes_image(name):
            result = (*result, *missing_engine(host))
        fits.append(BackendFit(backend=name, findings=result))
    return tuple(sorted(fits, key=_rank))


def judge(
    profile: Profile,
    host: Host,
    *,
    lock: Lock | None = None,
    backend: str | None = None,
    building: bool = False,
    judged: Sequence[BackendFit] = (),
) -> Fit:
    """Return whether a profile and its locked files fit a host, and why.

    If `backend` is None, the best backend is used. With `building`, check only whether the profile
    can be built on this host: an obstacle that prevents only running the profile becomes a warning.
    `judged` is the result of `judge_backends`, if the caller already has it.
    """
    every = tuple(judged) or judge_backends(profile, host, lock)
    chosen = every[0]
    if backend is not None:
        chosen = BackendFit(backend=backend, findings=findings(profile, host, backend, lock))
    # Not every image builder needs an engine; those that do check for it themselves.
    relevant = [f for f in chosen.findings if not (building and f.code == "engine")]
    level = worst(relevant)
    verdict = VERDICTS["warning" if building and level == "no" else level]
    only = ""
    if backends.makes_image(chosen.backend) and verdict != "no":
        only = only_image(every)
    unknown = [f for f in relevant if f.gpu is not None and f.gpu.vendor == "unknown"]
    if unknown and verdict == "warnings":
        # Whether there is a GPU at all comes before what it would need.
        only = ""
        relevant = unknown
    decisive: tuple[Level, ...] = ("impossible",)
    if level != "impossible":
        decisive = _DECISIVE[verdict]
    sentences = _sentences(relevant, decisive)
    if only:
        sentences = (f"image only: {only}", *sentences)
    return Fit(
        profile=profile.name,
        verdict=verdict,
        reasons=sentences,
        impossible=level == "impossible",
        backend=chosen.backend,
        lacks_engine=verdict == "warnings" and chosen.lacks_engine and not chosen.lacks_more,
        environment={} if verdict == "no" else hidden_gpus(chosen.findings),
        workaround=_workaround(profile, host, every),
    )


def hidden_gpus(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the environment variables that hide the GPUs excluded by the findings."""
    variables: dict[str, str] = {}
    for finding in findings:
        variables |= finding.variables
    return variables


def _rank(fit: BackendFit) -> tuple[int, bool]:
    return LEVELS.index(fit.level), fit.level == "warning" and fit.lacks_engine


def _sentences(findings: Sequence[Finding], levels: Sequence[Level]) -> tuple[str, ...]:
    texts = []
    for level in levels:
        texts += [f.text for f in findings if f.level == level]
    if "warning" in levels:
        texts += [f.text for f in findings if f.variables]
    return tuple(dict.fromkeys(texts))


def only_image(every: tuple[BackendFit, ...]) -> str:
    """Return the reason why a profile works on this host in an image, but not natively.

    Return an empty string if the profile also works natively, or if it does not work at all. The
    text is meant to follow "image only: ".
    """
    if pair := _image_instead(every):
        return "; ".join(dict.fromkeys(map(_short, pair[1].decisive)))
    return ""


def _workaround(profile: Profile, host: Host, every: tuple[BackendFit, ...]) -> str:
    """Return one or two sentences that say how to use a profile in an image.

    Return an empty string if the profile works natively on this host, or if it does not work at
    all.
    """
    if (pair := _image_instead(every)) is None:
        return ""
    image, native = pair
    verb = "may work" if image.lacks_more else "works"
    text = f"{profile.name} {verb} here in a Docker image"
    if image.lacks_engine:
        text += " once a container engine runs"
    if {finding.code for finding in native.decisive} == {"level-zero"}:
        text += ", or natively once Level Zero is installed."
    else:
        text += f", but not natively: {'; '.join(dict.fromkeys(f.text for f in native.decisive))}."
    return f"{text} See `envbuilder doctor`."


def _image_instead(every: tuple[BackendFit, ...]) -> tuple[BackendFit, BackendFit] | None:
    """Return the best image fit and the best native fit, if only the image works.

    Otherwise, return None.
    """
    image = best_of(every, images=True)
    native = best_of(every, images=False)
    if image and native and image.works and not native.works:
        return image, native
    return None


def best_of(every: Sequence[BackendFit], *, images: bool) -> BackendFit | None:
    """Return the best fit among the backends that make images, or among the native backends.

    `every` must be sorted, with the best fit first. Return None if there is no such backend.
    """
    for fit in every:
        if backends.makes_image(fit.backend) == images:
            return fit
    return None


def _short(finding: Finding) -> str:
    if finding.code == "level-zero":
        return "Level Zero is missing"
    return finding.text


def findings(
    profile: Profile,
    host: Host,
    backend: str,
    lock: Lock | None = None,
    packages: Packages = _NONE,
) -> tuple[Finding, ...]:
    """Return all findings about using a profile with one backend on a host.

    `packages` describes the device code in the profile's packages, as far as it has been read.
    """
    image = backends.makes_image(backend)
    platform = docker_platform(host) if image else host.platform
    required = needs.needs(profile, lock, platform or profile.platforms[0], wsl=host.wsl)
    required = replace(required, packages=packages)
    result = _platform(profile, host, backend)
    if not image:
        result += _system(required, host)
    result += [*_translation(host, backend), *_cpu_flags(profile, host)]
    if text := releases.unknown(profile.framework, profile.release):
        result.append(Finding("warning", text, "release-unknown"))
    return (*result, *needs.findings(profile, host, required, native=not image))


def serving(profile: Profile, host: Host) -> tuple[tuple[releases.Build, Level], ...]:
    """Return the framework builds for a profile's accelerator on this host, newest first.

    Each build is paired with the most severe level of the findings about the GPU, the driver, macOS
    and the CPU flags. The level `note` means that the build fits.
    """
    row = ACCELERATORS[profile.accelerator]
    return rated(profile.framework, row, host, _cpu_flags(profile, host))


def rated(
    framework: types.Framework, row: Accelerator, host: Host, flags: Sequence[Finding] = ()
) -> tuple[tuple[releases.Build, Level], ...]:
    """Return a framework's builds for an accelerator, each with a level as in `serving`.

    `flags` are the findings about CPU flags, which apply to all builds.
    """
    platform = _platform_of_framework(host)
    result = []
    for build in releases.every(framework):
        if build.platform == platform and releases.is_for(build.build, row.name):
            required = build.needs(wsl=host.wsl)
            result.append((build, worst([*flags, *of_build(row, host, required)])))
    return tuple(result)


def of_build(row: Accelerator, host: Host, required: Needs) -> list[Finding]:
    """Return the findings about running a framework build on the host's GPUs, driver and macOS.

    `required` describes what the build needs.
    """
    result = needs.of_gpus(row, host, required, native=False) if row.vendor else []
    if host.os == "macos":
        result += _system(required, host)
    return result


def other_release(profile: Profile, host: Host, lock: Lock | None, offers: Offers) -> str:
    """Return a sentence that suggests a release that works better, and says how to get it.

    `offers` contains the profile's releases, newest first, each with the reason why the project
    cannot use it, or with an empty string. If no release works on the host, the sentence names the
    oldest sufficient driver. Return an empty string if no release is better than the locked one, or
    if the locked release is unknown.
    """
    limits = {}
    usual = set[releases.Build]()
    for chosen, obstacle in offers:
        limits[chosen.release] = obstacle
        usual.update(chosen.builds)
    platform = _platform_of_framework(host)
    target = profile_lock.first(lock, platform)
    current = profile.build_on(platform)
    if target:
        current = needs.build_of(profile.framework, target.versions, platform)
    level, better = _best(profile, host, limits)
    if level not in _WORKS:
        return _oldest_driver(profile, host, limits)
    if current in better or (target and not current):
        return ""
    age = {release: n for n, release in enumerate(releases.table_of(profile.framework))}
    present = age.get(current.release if current else profile.release or "", -1)

    def cost(build: releases.Build) -> tuple[int, ...]:
        """Return a sort key that puts the best builds first.

        Builds of releases that the project can use come first. They are sorted so that the
        profile's own builds precede other builds, builds of the current release precede builds of
        other releases, and newer releases precede older ones. Among the builds that the project
        cannot use, releases newer than the current one precede older ones, and nearer releases
        precede farther ones.
        """
        rank = age[build.release]
        if limits[build.release]:
            return 1, rank > present, abs(rank - present), build not in usual
        return 0, build not in usual, rank != present, rank

    new, *others = sorted(better, key=cost)
    text = f"{FRAMEWORKS[profile.framework].title} {new.release} ({new.build})"
    ways = []
    if limit := limits[new.release]:
        ways.append(limit)
        nearest = "next" if age[better[-1].release] > present else "first"
        if age[new.release] > present:
            nearest = "last"
        text += f" is the {nearest} release that"
    text += " works here" if level == "note" else " may work here"
    if driver := new.needs(wsl=host.wsl).driver:
        text += f" (driver {driver} and later)"
    if new not in usual:
        ways.append(
            f"to use that build, write your own profile (extends: {profile.name}, builds:"
            f" [{new.build}], release: {new.release})"
        )
        instead = next((b.release for b in others if limit and b in usual), "")
        if instead:
            ways[-1] += f", or use {profile.name}'s build of {instead}"
    way = (
        "; ".join(ways)
        or f'to use it, write framework_version: "{new.release}" into envbuilder.yaml'
    )
    return f"{text}: {way}."


def _best(
    profile: Profile, host: Host, among: Container[str]
) -> tuple[Level, list[releases.Build]]:
    """Return the best level among the builds of the given releases, and the builds that reach it.

    The builds are sorted from newest to oldest. If the tables list kernels for the accelerator,
    builds with unknown kernels are skipped, because they may not work and advice needs a source.
    """
    has_kernels = ACCELERATORS[profile.accelerator].states_kernels
    rated = {
        build: level
        for build, level in serving(profile, host)
        if build.release in among and (not has_kernels or build.needs().kernels)
    }
    best: Level = min(rated.values(), key=LEVELS.index, default="no")
    return best, [build for build, level in rated.items() if level == best]


def _oldest_driver(profile: Profile, host: Host, limits: Mapping[str, str]) -> str:
    """Return a sentence that names the oldest driver with which a release works.

    Releases that the project allows are preferred. Return an empty string if a newer driver alone
    would not help.
    """
    gpus = tuple(replace(gpu, driver_version=_NEWEST_DRIVER) for gpu in host.gpus)
    level, works = _best(profile, replace(host, gpus=gpus), limits)
    drivers = {build: build.needs(wsl=host.wsl).driver for build in works}
    if level not in _WORKS:
        return ""
    new = min(works, key=lambda b: (bool(limits[b.release]), version(drivers[b]) or ()))
    build = f"{FRAMEWORKS[profile.framework].title} {new.release} ({new.build})"
    text = f"Driver {drivers[new]} or newer is sufficient, for {build}"
    if limit := limits[new.release]:
        text += f"; {limit}"
    return f"{text}."


def _platform_of_framework(host: Host) -> types.Platform | None:
    """Return the platform of the framework builds that can use this host's accelerator.

    On a Mac, this is macOS, because containers cannot use its GPU. On other hosts, it is the
    platform of containers.
    """
    if host.os == "macos":
        return host.platform
    return docker_platform(host)


def missing_engine(host: Host) -> list[Finding]:
    """Return a list with the finding that no container engine responds, so images cannot run.

    Return an empty list if an engine responds.
    """
    engines = host.containers.engines
    if host.containers.has_engine:
        return []
    text = "no container engine answers"
    if engines:
        text += f" ({engines[0].socket}: {engines[0].detail.rstrip('.')})"
    return [Finding("warning", text, "engine")]


def _platform(profile: Profile, host: Host, backend: str) -> list[Finding]:
    if backend not in profile.backends:
        return [Finding("impossible", f"it does not support the {backend} backend", "backend")]
    native = not backends.makes_image(backend)
    platforms = [p for p in profile.platforms if native or p.startswith("linux/")]
    platform = host.platform if native else docker_platform(host)
    possible = [p for p in platforms if not native or p.startswith(host.os)]
    if possible and host.os != "other" and host.machine == "unknown":
        return [Finding("warning", "this machine's architecture could not be read", "unread")]
    if platform in platforms:
        return []
    needed = " and ".join(platforms or profile.platforms)
    # On a Mac they are Linux's.
    subject = "this host is" if platform in {None, host.platform} else "containers here are"
    text = f"it is for {needed}, but {subject} {platform or f'{host.os} on {host.machine}'}"
    return [Finding("impossible" if native or not platforms else "no", text, "platform")]


def docker_platform(host: Host) -> types.Platform | None:
    """Return the platform of the containers on a host, or None if it is unknown.

    Container engines always run Linux on the host's CPU architecture, even on macOS.
    """
    if host.os == "other":
        return None
    return types.container_platform(host.machine)


def _system(required: Needs, host: Host) -> list[Finding]:
    """Return the findings about whether the operating system supports a native environment."""
    if host.os == "macos":
        return _at_least("macOS", host.os_version, required.macos)
    if host.os != "linux" or not required.glibc:
        return []
    name, _, number = (host.libc or "glibc").partition(" ")
    if name != "glibc":
        text = f"the C library is {name}, but the wheels need glibc: use --backend docker"
        return [Finding("impossible", text, "libc-other")]
    number = number or tables.distribution_glibc(host.os_version) or ""
    return [f for f in _at_least("glibc", number, required.glibc) if f.level != "note"]


def _at_least(name: str, actual: str | None, minimum: str) -> list[Finding]:
    lowest = version(minimum)
    current = version(actual)
    if lowest is None:
        return []
    if current is None:
        return [Finding("warning", f"the version of {name} could not be read", "system-unread")]
    if current < lowest:
        text = f"{name} {actual} is older than {minimum}, which the wheels need"
        return [Finding("impossible", text, "system-old")]
    return [Finding("note", f"{name} {actual}")]


def _translation(host: Host, backend: str) -> list[Finding]:
    if host.os == "linux" and host.rosetta:
        text = "this is x86_64 Linux translated by Rosetta, which is slow"
        return [Finding("warning", text, "rosetta-linux")]
    if host.os != "macos" or backends.makes_image(backend):
        return []
    if host.rosetta:
        text = "Python is x86_64 under Rosetta: run envbuilder with an arm64 Python"
        return [Finding("no", text, "rosetta")]
    if host.rosetta is None:
        text = "whether Python runs under Rosetta could not be read"
        return [Finding("warning", text, "unread")]
    return []


def _cpu_flags(profile: Profile, host: Host) -> list[Finding]:
    """Return the findings about required CPU flags that are missing.

    If none are missing, return the findings about missing desirable flags.
    """
    requires = profile.requires
    missing = _missing_flags(profile, host, requires.cpu_flags, "no")
    desirable = _missing_flags(profile, host, requires.cpu_flags_wanted, "warning")
    # A desirable flag that could not be read is no reason to doubt the rest.
    return missing or [f for f in desirable if f.code == "cpu-flags"]


def _missing_flags(
    profile: Profile, host: Host, flags: Sequence[str], level: Level
) -> list[Finding]:
    # x86 flags do not apply to other processors, which a profile may also support.
    needed = [flag for flag in flags if flag not in X86_FLAGS or host.machine == "x86_64"]
    if not needed:
        return []
    if host.cpu.flags is None:
        return [Finding("warning", "the CPU's flags could not be read", "unread")]
    has = tables.with_implied_flags(host.cpu.flags)
    unrecorded = [flag for flag in needed if flag not in TRACKED_FLAGS | has]
    missing = [flag for flag in needed if flag in TRACKED_FLAGS - has]
    result = []
    if unrecorded:
        text = f"whether the CPU has {', '.join(unrecorded)} is not recorded"
        result.append(Finding("warning", text, "unread"))
    name = host.cpu.generation or host.cpu.model_name or "the CPU"
    if missing:
        first = missing[0].replace("sse4_", "SSE4.")
        if "avx512f" in missing:
            first = "AVX-512"
        text = f"{name} has no {first} ({', '.join(missing)} missing)"
        if then := profile.requires.without_cpu_flags:
            text += f": {then}"
        result.append(Finding(level, text, "cpu-flags"))
    elif not unrecorded and profile.expects.extension:
        result.append(Finding("note", f"{name} has {needed[-1]}"))
    return result
