"""Judge whether an existing environment suits a host. If not, provide the commands to fix it.

Only known facts count against an environment. None of the following is a reason to change it: a
build that no table lists, packages that do not belong to a framework, or a CPU build on a host
where no other build could work.
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

    from packaging.requirements import Requirement

    from envbuilder.doctor.installed import Installed, Package
    from envbuilder.host.gpus.accelerator import Finding, Level, Needs
    from envbuilder.host.model import Host
    from envbuilder.profiles.releases import Build

Verdict = Literal["broken", "unusable", "slower", "right", "none"]
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "broken": ("broken", "bold red"),
    "unusable": ("cannot use this GPU", "bold red"),
    "slower": ("works, but slower than it could", "yellow"),
    "right": ("right", "green"),
    "none": ("no framework", "cyan"),
}
"""Verdict → its description and its style on a screen. The verdicts are sorted, worst first."""
_SLOW = frozenset({"kernels-partly", "kernels-ptx"})


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict on an environment, with its reason and its fix."""

    place: Place
    framework: types.Framework | None = None
    """The judged framework. If there are several frameworks, this is the one with the worst
    verdict."""
    release: str = ""
    build: str = ""
    accelerator: str = "cpu"
    """The accelerator that the framework uses on the host."""
    verdict: Verdict
    proof: str
    fix: str = ""
    paste: str = ""
    """Shell commands that fix the environment, for the tool that manages its packages."""
    notes: tuple[str, ...] = ()


class Around(NamedTuple):
    """The information on which the verdict depends, besides the environment and the host."""

    url: Callable[[str], str]
    """A function that takes the symbolic name of an index and returns its URL."""
    system: bytes = b""
    """The names of the libraries known to this machine's loader. Empty if the host is another
    machine."""
    environ: Mapping[str, str] = {}


def judge(env: Installed, host: Host, around: Around) -> Judgement:
    """Return the verdict on an environment.

    If the environment contains several frameworks, return the verdict on the framework with the
    most severe problem.
    """
    judged = [_judged(env, key, host, around) for key in env.frameworks]
    if env.lost:
        proof = f"the Python that it was made from no longer exists: {env.lost}"
        judged = [
            Judgement(
                place=env.place, verdict="broken", proof=proof, fix="Create the environment again."
            )
        ]
    nothing = Judgement(
        place=env.place,
        verdict="none",
        proof="PyTorch, JAX or TensorFlow is not installed in this environment",
        fix="To judge another environment, name its interpreter with --python.",
    )
    order = list(VERDICTS)
    decisive = min(judged, key=lambda each: order.index(each.verdict), default=nothing)
    return replace(decisive, notes=tuple(_notes(env, {each.build for each in judged})))


def _judged(env: Installed, key: types.Framework, host: Host, around: Around) -> Judgement:
    """Return the verdict on one framework of an environment."""
    package = env.frameworks[key]
    build, kind, required = _build(env, key, host)
    row = next((each for each in ACCELERATORS.values() if releases.is_for(kind, each.name)), CPU)
    every = fit.of_build(row, host, required)
    findings = [finding for finding in every if finding.code != "no-gpu"]
    level = worst(findings)
    decisive = [finding for finding in findings if finding.level == level]
    target = _best(env, key, host)
    verdict: Verdict = "right" if level in {"note", "warning"} else "unusable"
    texts = dict.fromkeys(finding.text for finding in decisive)
    proof = "; ".join(texts) or (
        "no GPU on this machine can run it"
        if host.gpus
        else "it runs on the CPU, because this machine has no GPU"
    )
    fix = ""
    damage = next(_damage(env, key, around), "")
    if fault := damage or next(_faults(env, key), ""):
        target = build if findings and verdict == "right" else target or build
        verdict = "broken"
        proof = fault
    elif not kind:
        proof = "its files do not show which build it is"
    elif not findings and target:
        vendors = {r.vendor for r in ACCELERATORS.values() if releases.is_for(target.build, r.name)}
        gpu = next(gpu for gpu in host.gpus if gpu.vendor in vendors)
        verdict = "slower" if kind == "cpu" else "unusable"
        proof = f"it has no code for {named(gpu)}"
    elif verdict == "unusable" and not target:
        fix = accelerators.fix(decisive[0], required, host, ())
    elif target not in {None, build} and _SLOW.intersection(finding.code for finding in findings):
        verdict = "slower"
    lines = ""
    if verdict != "right" and target:
        again = bool(damage) and (target.release, target.build) == (package.release, kind)
        which = "right for"
        if target.release != package.release:
            which = "the nearest release for"
        fix = f"{_title(key, target.release, target.build)} is {which} this machine."
        lines = paste.lines(env, key, target, around.url, again=again)
    return Judgement(
        place=env.place,
        framework=key,
        release=package.release,
        build=kind,
        accelerator=_accelerator(row, kind, findings, host),
        verdict=verdict,
        proof=f"{_title(key, package.release, kind)}: {proof}",
        fix=fix,
        paste=lines,
    )


def _accelerator(row: Accelerator, kind: str, findings: list[Finding], host: Host) -> str:
    """Return the accelerator that the framework uses on the host.

    If the framework's build is unknown, return the accelerator that the framework should try.
    """
    if findings:
        return row.name
    rows = (of_vendor(gpu.vendor) for gpu in host.gpus)
    return next((each.name for each in rows if each and not kind), "cpu")


def _build(env: Installed, key: types.Framework, host: Host) -> tuple[Build | None, str, Needs]:
    """Return the build of a framework, the build's name, and what the build needs from the host.

    The build is None if no table lists it. The name is "" if the name is unknown.
    """
    package = env.frameworks[key]
    versions = {name: each.version for name, each in env.packages.items()}
    if host.os == "macos":
        versions[key] = package.release
    if env.is_of_conda(package):  # other builds, of which their CUDA alone is known
        versions = {"nvidia-cuda-runtime": cuda_of(package.build)}
    has_plugin = key == "jax" and any(name.endswith("-plugin") for name in versions)
    if key == "jax" and not has_plugin:  # libraries of CUDA here are another package's
        versions = {name: v for name, v in versions.items() if not name.startswith("nvidia-")}
    build = needs.build_of(key, versions, host.platform)
    kind = build.build if build else package.build
    if kind == "cpu" and (package.name == "tensorflow" or has_plugin):
        kind = ""  # it may find CUDA's libraries in the system
    return build, kind, needs.of_packages(key, versions, host.platform, wsl=host.wsl)


def _best(env: Installed, key: types.Framework, host: Host) -> Build | None:
    """Return the build that works best with a GPU of the host, or None if no build works.

    Builds for the environment's Python version are preferred. Among these, builds of the installed
    release are preferred, followed by those of the nearest release. Of two equally near releases,
    the later one is preferred.
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


def _damage(env: Installed, key: types.Framework, around: Around) -> Iterator[str]:
    """Yield reasons why the framework's own files cannot work on any machine."""
    package = env.frameworks[key]
    if version_numbers(package.metadata) != version_numbers(package.version):
        yield (
            f"two installs are mixed: METADATA is of {package.metadata}, the code is of"
            f" {package.version}"
        )
    lacks = installed.lacking(env, key, around.system, around.environ) if around.system else ()
    if lacks:
        yield f"libraries are missing: {first(lacks, 5)}"


def _faults(env: Installed, key: types.Framework) -> Iterator[str]:
    """Yield reasons why a framework and its companions cannot work together on any machine."""
    package = env.frameworks[key]
    for name in FRAMEWORKS[key].builds & env.packages.keys():
        part = env.packages[name]
        unstated = [f"jaxlib=={part.release}"] if name.endswith("-plugin") else []
        if part is package:
            unstated += releases.rules(key, package.release)
            yield from _missing(env, part)
        yield from _conflicts(env, part, unstated)
        # torchcodec's own build for the CPU works beside any.
        if part.build and name != "torchcodec" and cuda_of(part.build) != cuda_of(package.build):
            yield f"{name} {part.version} is for another version of CUDA"


def _missing(env: Installed, package: Package) -> Iterator[str]:
    """Yield a sentence for each package that is required by `package` but not installed.

    Missing frameworks and parts of CUDA are not reported. If `package` is from conda, nothing is
    reported, because such a package declares requirements that conda provides under other names.
    """
    if env.is_of_conda(package):
        return
    for need in _needs(env, package.requires):
        name = types.canonical(need.name)
        if name not in env.packages and not of_build(name) and not cuda_of(name):
            yield f"{package.name} {package.version} needs {need.name}, which is not installed"


def _title(key: types.Framework, release: str, build: str) -> str:
    return f"{FRAMEWORKS[key].title} {release}" + (f" ({build})" if build else "")


def _needs(env: Installed, texts: Iterable[str]) -> Iterator[Requirement]:
    """Yield those requirements in `texts` that apply to the environment.

    Invalid requirements, and requirements that belong to an extra, are left out.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    version = env.place.version
    markers = {"extra": "", "python_version": version, "python_full_version": f"{version}.0"}
    for text in texts:
        with suppress(InvalidRequirement, ValueError, RecursionError):
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate(markers):
                yield need


def _conflicts(env: Installed, package: Package, unstated: Iterable[str] = ()) -> Iterator[str]:
    """Yield a sentence for each unsatisfied requirement for a framework or for NumPy.

    The requirements in question are those of `package` and those in `unstated`.
    """
    for need in _needs(env, (*package.requires, *unstated)):
        other = env.packages.get(types.canonical(need.name))
        if other is None or not (of_build(other.name) or other.name == "numpy"):
            continue
        with suppress(ValueError):  # an invalid version
            if not any(need.specifier.contains(v, prereleases=True) for v in other.versions):
                yield (
                    f"{package.name} {package.version} needs {need.name}{need.specifier}, but"
                    f" {other.version} is installed"
                )


def _notes(env: Installed, kinds: set[str]) -> Iterator[str]:
    """Yield notes about possible problems with an environment.

    The notes are about modules and package copies that hide others, about packages for another CUDA
    version, and about conflicting requirements.
    """
    for path in env.hiding:
        yield f"Python may import {path} instead of the installed framework: rename it"
    for other in env.others:
        yield (
            f"{other.name} {other.version} in {other.site} is not used, because another copy"
            " comes first"
        )
    majors = {*map(cuda_of, kinds)} - {""}
    for name, package in env.packages.items():
        if majors and cuda_of(name) not in {"", *majors}:
            yield f"{name} is for CUDA {cuda_of(name)}, the framework for {first([*majors], 2)}"
        if not of_build(name):
            yield from _conflicts(env, package)
