"""Judge whether an environment that is there is right for a host, and say what to type if not.

Only what is known counts against it: a build that no table has, packages that are not of a
framework, or a build for the CPU where nothing else could work are no reason to change anything.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import first
from envbuilder.core.text import version_numbers
from envbuilder.doctor import accelerators, installed, paste
from envbuilder.doctor.installed import Place
from envbuilder.host.accelerators import ACCELERATORS, CPU, of_vendor
from envbuilder.host.gpus.accelerator import Accelerator, named, worst
from envbuilder.profiles import fit, needs, releases
from envbuilder.profiles.frameworks import FRAMEWORKS, cuda_of, of_build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from envbuilder.doctor.installed import Installed, Package
    from envbuilder.host.gpus.accelerator import Level, Needs
    from envbuilder.host.model import Host
    from envbuilder.profiles.releases import Build

Verdict = Literal["broken", "unusable", "slower", "right"]
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "broken": ("broken", "bold red"),
    "unusable": ("cannot use this GPU", "bold red"),
    "slower": ("works, but slower than it could", "yellow"),
    "right": ("right", "green"),
}
"""Worst first, each in words, with the style of a screen."""
_SLOW = frozenset({"kernels-partly", "kernels-ptx"})


class Judgement(Struct, frozen=True, kw_only=True):
    """What is to be said about an environment."""

    place: Place
    framework: types.Framework | None = None
    """The one that is worst off, if there are several."""
    release: str = ""
    build: str = ""
    accelerator: str = "cpu"
    """What it uses on the host."""
    verdict: Verdict
    proof: str
    fix: str = ""
    paste: str = ""
    """Lines for a shell, as the tool that made the environment reads them."""
    notes: tuple[str, ...] = ()


class Around(NamedTuple):
    """What else decides, beside the environment and the host."""

    url: Callable[[str], str]
    """Finds the URL of an index by its symbolic name."""
    system: bytes = b""
    """The names of the libraries that the loader of this machine knows; empty for another host."""
    environ: Mapping[str, str] = {}


def judge(env: Installed, host: Host, around: Around) -> Judgement:
    """Return what is to be said of the framework that is worst off."""
    judged = [_judged(env, key, host, around) for key in env.frameworks]
    if env.lost:
        proof = f"the Python that it was made from is gone: {env.lost}"
        judged = [Judgement(place=env.place, verdict="broken", proof=proof, fix="Make it again.")]
    nothing = Judgement(place=env.place, verdict="right", proof="no framework is in it")
    order = list(VERDICTS)
    decisive = min(judged, key=lambda each: order.index(each.verdict), default=nothing)
    return replace(decisive, notes=tuple(_notes(env, {each.build for each in judged})))


def _judged(env: Installed, key: types.Framework, host: Host, around: Around) -> Judgement:
    """Return what is to be said about a framework."""
    package = env.frameworks[key]
    build, kind, required = _build(env, key, host)
    row = next((each for each in ACCELERATORS.values() if _is_for(kind, each)), CPU)
    every = fit.of_build(row, host, required)
    findings = [finding for finding in every if finding.code != "no-gpu"]
    level = worst(findings)
    decisive = [finding for finding in findings if finding.level == level]
    target = _best(env, key, host)
    verdict: Verdict = "right" if level in {"note", "warning"} else "unusable"
    texts = dict.fromkeys(finding.text for finding in decisive)
    proof = "; ".join(texts) or "no GPU here could do its work"
    fix = ""
    if fault := next(_faults(env, key, around), ""):
        target = build if findings and verdict == "right" else target or build
        verdict, proof = "broken", fault
    elif not kind:
        proof = "its files do not say which build it is"
    elif not findings and target:
        gpu = next(gpu for gpu in host.gpus if _is_for(target.build, of_vendor(gpu.vendor)))
        verdict = "slower" if kind == "cpu" else "unusable"
        proof = f"it has no code for {named(gpu)}"
    elif verdict == "unusable" and not target:
        fix = accelerators.fix(decisive[0], required, host, ())
    elif target not in {None, build} and _SLOW.intersection(finding.code for finding in findings):
        verdict = "slower"
    lines = ""
    if verdict != "right" and target:
        which = "right for"
        if target.release != package.release:
            which = "the nearest release that serves"
        fix = f"{_title(key, target.release, target.build)} is {which} this machine."
        lines = paste.lines(env, key, target, around.url)
    return Judgement(
        place=env.place,
        framework=key,
        release=package.release,
        build=kind,
        accelerator=row.name if findings else "cpu",
        verdict=verdict,
        proof=f"{_title(key, package.release, kind)}: {proof}",
        fix=fix,
        paste=lines,
    )


def _build(env: Installed, key: types.Framework, host: Host) -> tuple[Build | None, str, Needs]:
    """Return the build of a framework if a table has it, its name if known, and what it needs."""
    package = env.frameworks[key]
    versions = {name: each.version for name, each in env.packages.items()}
    if host.os == "macos":
        versions[key] = package.release
    if env.is_of_conda(package):  # other builds, of which their CUDA alone is known
        versions = {"nvidia-cuda-runtime": cuda_of(package.build)}
    build = needs.build_of(key, versions, host.platform)
    kind = build.build if build else package.build
    if kind == "cpu" and (package.name == "tensorflow" or "-plugin" in " ".join(versions)):
        kind = ""  # it may find CUDA's libraries in the system
    return build, kind, needs.of_packages(key, versions, host.platform, wsl=host.wsl)


def _best(env: Installed, key: types.Framework, host: Host) -> Build | None:
    """Return the build that serves a GPU of the host best; None if none does.

    This release goes before others, then the nearest, of those the later one.
    """
    present = env.frameworks[key].release
    order = list(releases.table_of(key))
    newer = sum(version_numbers(each) > version_numbers(present) for each in order)
    others = {*map(cuda_of, env.packages)} - {""}

    def cost(build: Build) -> tuple[object, ...]:
        place = order.index(build.release)
        return (
            env.place.version not in build.pythons,
            build.release != present,
            abs(place - newer),
            place > newer,
            bool(others) and cuda_of(build.build) not in others,
            build.index != "default",
        )

    rated: dict[Build, Level] = {}
    for gpu in host.gpus:
        if row := of_vendor(gpu.vendor):
            rated |= fit.rated(key, row, host)
    serving = [build for build, level in rated.items() if level == "note"]
    return min(serving, key=cost, default=None)


def _faults(env: Installed, key: types.Framework, around: Around) -> Iterator[str]:
    """Yield why a framework works on no machine."""
    package = env.frameworks[key]
    if version_numbers(package.metadata) != version_numbers(package.version):
        yield f"two installs are mixed: METADATA of {package.metadata}, code of {package.version}"
    for name in FRAMEWORKS[key].builds & env.packages.keys():
        part = env.packages[name]
        unstated = [f"jaxlib=={part.version}"] if name.endswith("-plugin") else []
        if part is package:
            unstated += releases.rules(key, package.release)
        yield from _conflicts(env, part, unstated)
        # torchcodec's own build for the CPU works beside any.
        if part.build and name != "torchcodec" and cuda_of(part.build) != cuda_of(package.build):
            yield f"{name} {part.version} is for another CUDA"
    lacks = installed.lacking(env, key, around.system, around.environ) if around.system else ()
    if lacks:
        yield f"libraries are missing: {first(lacks, 5)}"


def _title(key: types.Framework, release: str, build: str) -> str:
    return f"{FRAMEWORKS[key].title} {release}" + (f" ({build})" if build else "")


def _is_for(build: str, row: Accelerator | None) -> bool:
    return bool(build and row and build.startswith(row.builds or row.name))


def _conflicts(env: Installed, package: Package, unstated: Iterable[str] = ()) -> Iterator[str]:
    """Yield what a package needs of frameworks and NumPy where another version is installed."""
    from packaging.requirements import InvalidRequirement, Requirement

    version = env.place.version
    markers = {"extra": "", "python_version": version, "python_full_version": f"{version}.0"}
    for text in (*package.requires, *unstated):
        with suppress(InvalidRequirement, ValueError):  # of either version, too
            need = Requirement(text)
            other = env.packages.get(types.canonical(need.name))
            if (
                other
                and (of_build(other.name) or other.name == "numpy")
                and (need.marker is None or need.marker.evaluate(markers))
                and not need.specifier.contains(other.version, prereleases=True)
            ):
                yield (
                    f"{package.name} {package.version} needs {need.name}{need.specifier}, and"
                    f" {other.version} is installed"
                )


def _notes(env: Installed, kinds: set[str]) -> Iterator[str]:
    """Yield what else may surprise: second copies, other CUDA's packages, others' requirements."""
    for other in env.others:
        yield f"{other.name} {other.version} in {other.site} is not used: another one comes first"
    majors = {*map(cuda_of, kinds)} - {""}
    for name, package in env.packages.items():
        if majors and cuda_of(name) not in {"", *majors}:
            yield f"{name} is for CUDA {cuda_of(name)}, the framework for {first([*majors], 2)}"
        if not of_build(name):
            yield from _conflicts(env, package)
