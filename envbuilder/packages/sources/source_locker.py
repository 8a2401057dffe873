"""Convert packages without wheels into locked wheels, and lock what is needed to rebuild them.

A lock records the hashes of a source and of the wheels needed to build it, so the wheel can be
rebuilt from the lock. The build of a pure Python package gives the same bytes on every machine. If
a build produces bytes that differ from those in the lock, this is reported. The store keeps each
wheel both under its hash and under a key computed from all inputs of the build.

Old sources need older tools, and some sources do not declare their requirements. For these sources,
alternative plans are tried in a fixed order.

This module is long because reading, building and locking a source share one plan, which each of
these steps may change.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import console, process, types
from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    Hint,
    InvalidError,
    ToolError,
    escaped,
    first,
    with_context,
)
from envbuilder.core.files import file_sha256
from envbuilder.host import interpreters as installed, probe
from envbuilder.packages import fetch as downloads, interpreters
from envbuilder.packages.python import static_metadata
from envbuilder.packages.python.static_metadata import Metadata
from envbuilder.packages.python.uv import Offer, UnresolvableError, started
from envbuilder.packages.sources import sealed, source
from envbuilder.packages.store import Store
from envbuilder.profiles import frameworks
from envbuilder.profiles.lock import BUILT, DIRECT, PRUNED, File, Recipe, Target
from envbuilder.profiles.requirements import distribution
from envbuilder.project import names

if TYPE_CHECKING:
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.packages.upstream import Listed
    from envbuilder.profiles.profile import Resolution

_UNDECLARED = {
    "cython",
    "numpy",
    "packaging",
    "psutil",
    "pybind11",
    "ninja",
    "wheel",
    "six",
    "tqdm",
    "scipy",
    "requests",
    "versioneer",
    "pbr",
    "setuptools",
    "setuptools-scm",
    "cmake",
    "setuptools-rust",
    "cppy",
    "jupyter-packaging",
}
"""Packages that setup.py files often import without declaring them."""
_OTHER_NAME = {"skbuild": "scikit-build", "pkg-resources": "setuptools<81"}
"""Module that is imported without being declared → the requirement that provides the module."""
_OLDER = (
    ("setuptools<81",),
    ("setuptools<72", "cython<3"),
    ("setuptools<66", "wheel<0.40", "cython<3"),
    ("setuptools<58", "wheel<0.40", "cython<3"),
)
"""Constraints for building older sources, tried in this order."""
_BESIDE = ("ninja", "packaging", "psutil")
_BESIDE_OLD = ("setuptools<70",)
"""Constraints for the extension builder in PyTorch up to 2.1. The builder imports pkg_resources,
which must contain `packaging`."""
_MISSING = re.compile(r"No module named '?([A-Za-z0-9_]+)")
_COMPILING = re.compile(r"command '[^']*' failed|ninja: build stopped|CMake Error")
_ATTEMPTS = 12
"""Maximum number of attempts to build a source. Each attempt may request more requirements."""
_FAILED: dict[tuple[object, ...], BuildError] = {}
"""The errors of builds that failed in this process. The profiles of a project often request the
same build."""
_FORM = 2
"""A part of every build's key. Change it if existing recipes must now produce different wheels."""


class BuildRequirements(Struct, frozen=True, kw_only=True):
    """A plan for building a source: the packages to install, and how to choose their versions."""

    requires: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    as_of: str = ""
    with_framework: bool = False
    cuda: bool = False
    """Whether the source contains CUDA code."""
    toolkit: tuple[str, ...] = ()
    """Additional requirements for compiling the CUDA code for a target."""

    def with_more(self, requirements: Iterable[str]) -> BuildRequirements:
        """Return the plan with additional requirements.

        A requirement for the framework is not added. Instead, the target's framework is then used
        for the build.
        """
        more = [*requirements]
        ours = [r for r in more if frameworks.of_build(distribution(r))]
        added = [r for r in more if r not in (*ours, *self.requires)]
        plan = replace(self, requires=(*self.requires, *added))
        return plan.beside_framework() if ours else plan

    def beside(self, versions: Mapping[str, str]) -> BuildRequirements:
        """Return the plan with packages pinned to their versions in `versions`, where available.

        This is needed because an old release may pin a build requirement, such as numpy==1.19.3, to
        a version that has no wheel for a platform.
        """
        pairs = [(distribution(line), line) for line in self.requires]
        pinned = (f"{n}=={versions[n]}" if n in versions else line for n, line in pairs)
        return replace(self, requires=tuple(dict.fromkeys(pinned)))

    def beside_framework(self) -> BuildRequirements:
        """Return the plan for a build that imports the framework.

        Such builds usually need certain packages, which are added to the plan. They have to be
        guessed, because sources rarely declare them, and the build does not run while locking.
        """
        names = set(map(distribution, self.requires))
        more = tuple(r for r in _BESIDE if r not in names)
        return replace(
            self,
            requires=(*self.requires, *more),
            constraints=self.constraints or _BESIDE_OLD,
            with_framework=True,
        )


class Wheel(Struct, frozen=True, kw_only=True):
    """A built wheel in the store."""

    file: str
    sha256: str
    size: int
    metadata: Metadata


class BuiltWheel(Struct, frozen=True, kw_only=True):
    """A built wheel and the plan that was used to build it."""

    plan: BuildRequirements
    wheel: Wheel


class _MoreError(Exception):
    """Raised when the build backend has further requirements, which are the error's arguments."""


class FrameworkError(BuildError):
    """Raised when a build imports the framework, which is not installed."""


class WheelBuilder:
    """A builder of wheels on this machine, which also determines their build requirements."""

    def __init__(self, settings: Settings, on_progress: Callable[[str], None]) -> None:
        self._settings = settings
        self._report = on_progress
        self._store = Store.of(settings)
        self._resolved: dict[tuple[BuildRequirements, str, str], tuple[File, ...]] = {}
        self._interpreters: dict[str, Path | None] = {}
        self._noted = set[str]()

    @cached_property
    def platform(self) -> types.Platform | None:
        """The platform of this machine; None if locks do not support it."""
        return probe.host().platform

    def first(self, pythons: Sequence[str]) -> str:
        """Return the first of the given Python versions with which this machine can build.

        Raise `ToolError` if this machine has none of them.
        """
        for python in pythons:
            if self.has(python):
                return python
        raise ToolError(
            f"no Python {' or '.join(pythons)} was found on this machine, but builds from source"
            " need one",
            f"To install one: python -m uv python install {pythons[0]}",
        )

    def has(self, python: str) -> bool:
        """Return whether this machine has the given Python version or can download it."""
        if python not in self._interpreters:
            self._interpreters[python] = self._interpreter(python)
        return self._interpreters[python] is not None

    def _interpreter(self, python: str) -> Path | None:
        answers = installed.Answers(self._settings.interpreters_dir)
        try:
            return installed.find(python, [python], probe.host().machine, answers=answers).path
        except ToolError:
            pass
        if self.platform is None:
            return None
        target = Target(platform=self.platform, python=python, base=None, files=())
        archive = interpreters.of_target(target, None)
        if archive is None:
            return None
        downloads.fetch([archive], target, self._settings, console.progress())
        above = tempfile.mkdtemp(prefix="envbuilder-python-")
        weakref.finalize(self, shutil.rmtree, above, ignore_errors=True)
        folder = Path(above, "python")
        interpreters.unpack(archive, self._store.checked(archive), folder)
        return folder / interpreters.program(python)

    def make(
        self, name: str, recipe: Recipe, version: str, plan: BuildRequirements, python: str
    ) -> BuiltWheel:
        """Build a wheel from a source, and return the wheel and the plan that succeeded.

        Old sources need older tools, and some sources do not declare their requirements, so
        alternative plans are tried. Raise `FrameworkError` if the build needs the framework, and
        `BuildError` if every attempt fails.
        """
        key = (self._settings.cache_dir, recipe.sha256, plan, python)
        if key in _FAILED:
            raise _FAILED[key]
        try:
            return self._attempts(name, recipe, version, plan, python)
        except BuildError as error:
            _FAILED[key] = error
            raise

    def _attempts(
        self, name: str, recipe: Recipe, version: str, plan: BuildRequirements, python: str
    ) -> BuiltWheel:
        assert self.platform is not None, "an interpreter was found"
        target = Target(platform=self.platform, python=python, base=None, files=())
        failure: BuildError | None = None
        for _ in range(_ATTEMPTS):
            try:
                needs = self.resolved(plan, self.platform, python)
                wheel = self.built(name, recipe, version, target, needs, set(plan.requires))
            except _MoreError as more:
                plan = plan.with_more(more.args)
            except UnresolvableError as error:
                failure = failure or BuildError(
                    f"{name}: its build requirements cannot be installed: {error}"
                )
                if not plan.as_of:
                    raise failure from error
                plan = replace(plan, as_of="")
            except sealed.FailedError as error:
                failure = failure or BuildError(f"{name}: {error.message}", error.hints)
                another = _another(plan, error.log)
                if another is None:
                    raise failure from error
                plan = another
            else:
                return BuiltWheel(plan=plan, wheel=wheel)
            if plan.with_framework:
                raise FrameworkError(f"{name}: cannot be built without the framework")
        raise failure or BuildError(f"{name}: its build keeps requesting further requirements")

    def built(
        self,
        name: str,
        recipe: Recipe,
        version: str,
        target: Target,
        needs: Sequence[File],
        asks: Collection[str] = (),
    ) -> Wheel:
        """Build a wheel from a source, with the wheels in `needs` installed, and return the wheel.

        A wheel from an earlier build with the same inputs is reused. `asks` contains the known
        build requirements; if it is empty, the backend's requirements are not checked. Raise
        `_MoreError` if the build backend has requirements that are not in `asks`.
        """
        if recipe.kind == "sdist":
            version = ""  # it has its own
        decides: dict[str, object] = {
            "form": _FORM,
            "recipe": [recipe.kind, recipe.sha256, recipe.subdirectory],
            "version": version,
            "python": target.python,
            "platform": self.platform,
            "needs": sorted(need.sha256 for need in needs),
            "cuda": recipe.cuda_architectures,
        }
        key = hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()
        make = partial(self._build, name, recipe, version, target, needs, asks)
        with self._store.receiving(key):  # another process or profile may build it right now
            wheel = self._store.remembered(key, Wheel, make)
            if not self._store.has(wheel.sha256):
                again = make()
                if again.sha256 != wheel.sha256:
                    raise _mismatch(name, wheel.sha256, again.sha256)
        return wheel

    def _build(
        self,
        name: str,
        recipe: Recipe,
        version: str,
        target: Target,
        needs: Sequence[File],
        asks: Collection[str],
    ) -> Wheel:
        interpreter = self._interpreters[target.python]
        assert interpreter is not None, "it was asked for"
        self._report(f"{name}: building it with Python {target.python}")
        downloads.fetch(needs, target, self._settings, console.progress())
        notes: list[str] = []
        with sealed.scratch(interpreter, notes) as scratch, tempfile.TemporaryDirectory() as aside:
            folder = Path(aside)
            scratch.install([self._store.link(need, folder) for need in needs])
            if recipe.cuda_architectures:
                scratch.compile_cuda(recipe.cuda_architectures)
            built = source.unpack(recipe, self._settings, scratch.folder / "source")
            backend = static_metadata.backend(built)
            more = scratch.call(backend, built, "get_requires_for_build_wheel", version)
            if asks:
                unknown = [m for m in more or () if isinstance(m, str) and m not in asks]
                if unknown:
                    raise _MoreError(*unknown)
            path = scratch.wheel(scratch.call(backend, built, "build_wheel", version))
            wheel, metadata = sealed.normalise(path, folder, name, target.python)
            sha256 = file_sha256(wheel)
            self._store.take_file(wheel, sha256)
            size = wheel.stat().st_size
        for note in {*notes} - self._noted:
            self._noted.add(note)
            self._report(f"note: {name}: {note}")
        return Wheel(file=path.name, sha256=sha256, size=size, metadata=metadata)

    def resolved(
        self, plan: BuildRequirements, platform: types.Platform, python: str
    ) -> tuple[File, ...]:
        """Return the wheels that satisfy a plan's requirements.

        If possible, these wheels have the same versions as the wheels already resolved for other
        targets. Raise `UnresolvableError` if no wheels satisfy the requirements.
        """
        key = (plan, platform, python)
        asked = (*plan.requires, *plan.toolkit)
        if key not in self._resolved and asked:
            earlier: dict[str, str] = {}
            for (of, _, _), wheels in self._resolved.items():
                if of == plan:
                    earlier |= {f.name: f.version for f in wheels}
            newest = ("--exclude-newer", f"{plan.as_of}T23:59:59Z") if plan.as_of else ()
            with started(self._settings, process.run, os.environ) as plain:
                uv = replace(plain, options=newest)
                try:
                    resolved = uv.compile(asked, platform, python, earlier, plan.constraints)
                except UnresolvableError:
                    if plan.constraints != _BESIDE_OLD:
                        raise
                    resolved = uv.compile(asked, platform, python, earlier, ())
            self._resolved[key] = tuple(wheel.file for wheel in resolved)
        return self._resolved.get(key, ())


def _another(plan: BuildRequirements, log: str) -> BuildRequirements | None:
    """Return the plan to try next, based on the log of a failed build; None if none is left."""
    missing = _MISSING.findall(log)
    name = types.canonical(missing[-1]) if missing else ""
    if frameworks.of_name(name):
        return plan.beside_framework()
    need = name if name in _UNDECLARED else _OTHER_NAME.get(name)
    if need and need not in (*plan.requires, *plan.constraints):
        return replace(plan, requires=(*plan.requires, need))
    if _COMPILING.search(log):
        return None
    if plan.as_of:
        return replace(plan, as_of="")
    if not any(distribution(r) == "setuptools" for r in plan.requires):
        return None
    tried = _OLDER.index(plan.constraints) + 1 if plan.constraints in _OLDER else 0
    return replace(plan, constraints=_OLDER[tried]) if tried < len(_OLDER) else None


def _mismatch(name: str, expected: str, actual: str) -> BuildError:
    """Return the error for a build whose wheel differs from the locked wheel."""
    return BuildError(
        f"{name}: its build produces a different wheel on this machine: expected sha256 {expected},"
        f" got {actual}",
        (
            Hint(
                "The build depends on more than its source and the locked packages. To transfer"
                " the locked wheel, use a bundle",
                ("bundle", "--output", "FILE.tar"),
            ),
            Hint("Or lock again on this machine", ("lock",)),
        ),
    )


class Candidate(Struct, frozen=True, kw_only=True):
    """A release that may be built from source, with the data that uv needs to choose it."""

    name: str
    version: str
    requires_dist: tuple[str, ...]
    requires_python: str
    recipe: Recipe
    """The recipe, without the wheels for the build requirements, since these depend on the
    target."""
    size: int | None
    """Size in bytes if the candidate is a wheel, or None if it must be built."""

    @property
    def offer(self) -> Offer:
        """An offer of this release as a wheel for every target.

        If the wheel has not been built yet, the offer is only a placeholder.
        """
        location = self.recipe.location
        is_wheel = self.recipe.kind == "wheel"
        stem = f"{self.name.replace('-', '_')}-{self.version}"
        return Offer(
            distribution=self.name,
            version=self.version,
            file=source.located(location).file if is_wheel else f"{stem}-py3-none-any.whl",
            sha256=self.recipe.sha256,
            size=self.size,
            source=DIRECT if is_wheel else BUILT,
            provenance="read",
            by=f"{'the wheel of' if is_wheel else 'built from'} {location}",
            requires_dist=tuple(map(static_metadata.requirement, self.requires_dist)),
            requires_python=static_metadata.modern(self.requires_python),
        )


class _Prepared(Struct, frozen=True, kw_only=True):
    """A candidate with its build plan and, if it has already been built, its wheel."""

    candidate: Candidate
    plan: BuildRequirements
    wheel: Wheel | None
    python: str


_REMEMBERED: dict[tuple[object, ...], _Prepared | EnvbuilderError] = {}
"""The results of `prepare`. The profiles of a project are locked in parallel and often request the
same source."""
_ASKING = threading.Lock()


class SourceLocker:
    """A converter of packages without wheels into locked wheels. Each source is read once."""

    def __init__(
        self,
        resolution: Resolution,
        settings: Settings,
        on_progress: Callable[[str], None] = lambda _: None,
        elsewhere: Callable[[str, str], Sequence[str] | None] = lambda *_: None,
        shown: Callable[[Path], tuple[str, str, tuple[str, ...]] | None] = lambda _: None,
        earlier: Iterable[File] = (),
    ) -> None:
        """Store the project's settings and the functions that provide metadata.

        `elsewhere` returns the requirements of a release, read from a wheel for another platform.
        `shown` returns the name, version and requirements found in the text of a source. `earlier`
        contains the files of an earlier lock, whose commits and archives are kept.
        """
        self._resolution = resolution
        self._settings = settings
        self._report = on_progress
        self._elsewhere = elsewhere
        self._shown = shown
        self._earlier = tuple(earlier)
        self._by_source: dict[str, Candidate] = {}
        self._plans: dict[str, BuildRequirements] = {}
        self._failures: set[str] = set()
        self._wheels: dict[tuple[str, types.Platform | None, str, str], Wheel] = {}
        self._builder = WheelBuilder(settings, on_progress)

    def allows(self, name: str) -> bool:
        """Return whether the project allows a package to be built."""
        build = self._resolution.build
        return build if isinstance(build, bool) else types.canonical(name) in build

    def prepare(
        self, name: str, specifier: str = "", *, pythons: Sequence[str], location: str = ""
    ) -> Candidate:
        """Return the newest release of a package that the specifier allows, as a candidate.

        The source is downloaded from `location` or, if that is empty, from an index. It is built
        only if it does not declare its requirements. A wheel that the project names by URL needs no
        permission, because none of its code runs.

        Raise `InvalidError` if the project does not allow the build or no release matches, and
        `BuildError` if the source cannot be downloaded or built.
        """
        name = types.canonical(name)
        as_of = self._resolution.as_of or ""
        parsed = source.located(location)
        if not self.allows(name) and parsed.kind != "wheel":
            raise InvalidError(
                f"{name}: there is no wheel, and building one is not allowed, because a build"
                " runs the package's own code",
                f"To allow it, write build_from_source: [{name}] into envbuilder.yaml.",
            )
        earlier = (f for f in self._earlier if f.name == name and parsed.stays(f.recipe))
        locked = next(earlier, None)
        about = (name, specifier, location, as_of, tuple(pythons), locked)
        key = (self._settings.cache_dir, *about)
        with _ASKING:
            if key not in _REMEMBERED:
                try:
                    _REMEMBERED[key] = self._prepare(name, specifier, location, pythons, locked)
                except EnvbuilderError as error:
                    _REMEMBERED[key] = error
            answer = _REMEMBERED[key]
        if isinstance(answer, EnvbuilderError):
            raise answer
        sha256 = answer.candidate.recipe.sha256
        self._by_source[sha256] = answer.candidate
        self._plans.setdefault(sha256, answer.plan)
        if answer.wheel:
            self._wheels[sha256, self._builder.platform, answer.python, ""] = answer.wheel
        return answer.candidate

    def _prepare(
        self,
        name: str,
        specifier: str,
        location: str,
        pythons: Sequence[str],
        locked: File | None,
    ) -> _Prepared:
        from packaging.specifiers import SpecifierSet

        settings = self._settings
        versions = SpecifierSet(specifier)
        self._report(f"{name}: fetching its source")
        version = ""
        elsewhere = None
        if location:
            recipe, version = _named(source.located(location), locked, settings)
        else:
            release, link = source.newest(name, versions, pythons, self._resolution.as_of or "")
            recipe = source.of_release(link, settings)
            requires = self._elsewhere(name, release)
            if requires is not None:
                elsewhere = static_metadata.Metadata(
                    version=release,
                    requires_dist=tuple(requires),
                    requires_python=link.requires_python,
                )
        if recipe.kind == "wheel":
            path = Store.of(settings).path(recipe.sha256)
            with sealed.opened(path, source.located(location).file, name) as (_, _, metadata):
                plan = BuildRequirements(requires=())
                wheel = None
                python = ""
                size = path.stat().st_size
        else:
            metadata, plan, wheel, python = self._read(name, recipe, version, pythons, elsewhere)
            size = None
        if metadata.name and types.canonical(metadata.name) != name:
            raise InvalidError(
                f"{name}: its source is named {escaped(metadata.name)}", "Use that name instead."
            )
        if not versions.contains(metadata.version, prereleases=True):
            raise InvalidError(
                f"{name}: {specifier} is required, but its source has version"
                f" {escaped(metadata.version)}"
            )
        return _Prepared(
            candidate=Candidate(
                name=name,
                version=metadata.version,
                requires_dist=metadata.requires_dist,
                requires_python=metadata.requires_python,
                recipe=replace(recipe, with_framework=plan.with_framework),
                size=size,
            ),
            plan=plan,
            wheel=wheel,
            python=python,
        )

    def _read(
        self,
        name: str,
        recipe: Recipe,
        version: str,
        pythons: Sequence[str],
        elsewhere: Metadata | None,
    ) -> tuple[Metadata, BuildRequirements, Wheel | None, str]:
        """Return a source's metadata, build plan and wheel, and the Python version of the wheel.

        If the source was not built, the wheel is None and the Python version is an empty string.
        `elsewhere` contains the metadata from a wheel for another platform, which makes a build
        unnecessary.
        """
        with tempfile.TemporaryDirectory(prefix="envbuilder-source-") as folder:
            try:
                built = source.unpack(recipe, self._settings, Path(folder, "source"))
                requires = static_metadata.backend(built).requires
                extends_cuda = static_metadata.extends_cuda(built)
                cuda = extends_cuda or any(built.rglob("*.cu"))
                metadata = elsewhere or static_metadata.declared(built)
                likely = static_metadata.recorded(built) or self._likely(built, version)
            except BuildError as error:
                with_context(error, name)
                raise
        plan = BuildRequirements(requires=(), as_of=self._resolution.as_of or "", cuda=cuda)
        plan = plan.with_more(requires)
        if extends_cuda or name in names.WITH_FRAMEWORK:
            plan = plan.beside_framework()
        # Its compiler depends on the target: what the text shows is enough until then.
        later = plan.with_framework or (plan.cuda and likely)
        if metadata is None and not later:
            python = self._builder.first(pythons)
            try:
                result = self._builder.make(name, recipe, version, plan, python)
            except FrameworkError:
                plan = plan.beside_framework()
            except BuildError as error:
                if likely is None:
                    raise
                self._failed(name, error)
            else:
                return result.wheel.metadata, result.plan, result.wheel, python
        metadata = metadata or likely
        if metadata is None:
            raise BuildError(
                f"{name}: cannot be built without the framework, and its source does not"
                " declare its requirements",
                "Use a release from the package index: its source declares the requirements.",
            )
        return metadata, plan, None, ""

    def _likely(self, folder: Path, tag: str) -> Metadata | None:
        """Return the metadata found in the text of a source that cannot be built on this machine.

        If the text does not specify a version, `tag` is used as the version or, if `tag` is empty,
        setuptools' default of 0.0.0. Return None if no metadata is found.
        """
        shown = self._shown(folder)
        if shown is None:
            return None
        name, version, requires = shown
        return Metadata(name=name, version=version or tag or "0.0.0", requires_dist=requires)

    def _failed(self, name: str, error: BuildError) -> None:
        """Report a failed build, once per package.

        The failure is not treated as an error, since the source can be locked without a wheel.
        """
        if name not in self._failures:
            self._failures.add(name)
            self._report(
                f"note: only the source of {name} is locked, because building it failed on this"
                " machine"
            )
            self._report(error.message)

    def finish(self, target: Target) -> Target:
        """Return a resolved target with wheels in place of the candidates.

        A pure Python package is built once for all targets. A compiled package is built only for
        the target of this machine. For other targets, the lock contains the source, which `build`
        turns into a wheel on a machine of the target's platform.
        """
        build_files: set[File] = set()
        finished = []
        for file in target.files:
            if file.source == DIRECT and file.recipe is None:
                file = replace(file, recipe=self._by_source[file.sha256].recipe)  # noqa: PLW2901
            elif file.source == PRUNED and file.recipe:
                programs = (f"bin/{name}" for name in file.recipe.without_programs)
                less = first([*file.recipe.without, *programs], 2)
                self._report(
                    f"note: {file.name} is installed without {less}, which another package also"
                    " installs"
                )
                file = _pruned(file, target, self._settings, console.progress())  # noqa: PLW2901
            elif file.source == BUILT and file.recipe is None:
                file, needs = self._finished(file, target)  # noqa: PLW2901
                build_files.update(needs)
            finished.append(file)
        ordered = tuple(sorted(build_files, key=lambda f: (f.name, f.file)))
        return replace(target, files=tuple(finished), build_files=ordered)

    def _finished(self, file: File, target: Target) -> tuple[File, tuple[File, ...]]:
        candidate = self._by_source[file.sha256]
        recipe = candidate.recipe
        sha256 = recipe.sha256
        builder = self._builder
        wheels = self._wheels
        plan = self._plans[sha256]
        pure = {
            key[-1]: wheel
            for key, wheel in wheels.items()
            if key[0] == sha256 and wheel.file.endswith("-none-any.whl")
        }
        wheel = pure.get("")
        architectures = self._resolution.cuda_architectures
        if wheel is None and plan.cuda and (kit := sealed.toolkit_of(target, architectures)):
            plan = replace(plan, toolkit=kit.requires)
            recipe = replace(recipe, cuda_architectures=kit.architectures)
            wheel = pure.get(kit.architectures)
        builds_here = builder.platform == target.platform and builder.has(target.python)
        # A build beside the framework takes long, and gigabytes: it waits until it is needed.
        if wheel is None and builds_here and not plan.with_framework:
            key = (sha256, target.platform, target.python, recipe.cuda_architectures)
            try:
                if key not in wheels:
                    result = builder.make(
                        candidate.name, recipe, candidate.version, plan, target.python
                    )
                    wheels[key] = result.wheel
                    plan = result.plan
                wheel = wheels[key]
            except FrameworkError:
                plan = plan.beside_framework()
            except BuildError as error:
                self._failed(file.name, error)
            self._plans[sha256] = replace(plan, toolkit=())
        needs = self._needs(file.name, plan, target)
        recipe = replace(
            recipe,
            requires=tuple(sorted(need.sha256 for need in needs)),
            with_framework=plan.with_framework,
        )
        if wheel is None:
            return as_source(replace(file, recipe=recipe)), needs
        if wheel.metadata.version != candidate.version:
            raise BuildError(
                f"{file.name}: its source has version {candidate.version}, but the built wheel has"
                f" version {escaped(wheel.metadata.version)}"
            )
        return _wheel_file(file, wheel, recipe), needs

    def _needs(self, name: str, plan: BuildRequirements, target: Target) -> tuple[File, ...]:
        """Return the wheels that are needed to build a package.

        If the plan's requirements cannot be installed, they are pinned to the versions in the
        target. Raise `BuildError` if the pinned requirements cannot be installed either.
        """
        beside = plan.beside({file.name: file.version for file in target.of_kind("wheel")})
        failure = ""
        for attempt in dict.fromkeys((plan, beside)):
            try:
                return self._builder.resolved(attempt, target.platform, target.python)
            except UnresolvableError as error:
                failure = str(error)
        raise BuildError(
            f"{name}: its build requirements cannot be installed on the target: {failure}"
        )


def _wheel_file(file: File, wheel: Wheel, recipe: Recipe) -> File:
    return replace(
        file,
        kind="wheel",
        version=wheel.metadata.version,
        file=wheel.file,
        sha256=wheel.sha256,
        size=wheel.size,
        recipe=recipe,
    )


def _pruned(file: File, target: Target, settings: Settings, progress: Progress) -> File:
    """Download the complete wheel, and return it without the files that the recipe leaves out."""
    downloads.fetch([sealed.unpruned(file)], target, settings, progress)
    return sealed.prune(file, target.python, settings)


def _named(
    location: source.Location, locked: File | None, settings: Settings
) -> tuple[Recipe, str]:
    """Return the recipe of a source that the project names, and the version of the source.

    The version is taken from the locked file or from a git tag, and is empty if neither specifies
    it. The recipe in `locked` is kept, unless the repository no longer has the locked commit.
    """
    recipe = locked.recipe if locked else None
    if locked and recipe and Store.of(settings).has(recipe.sha256):
        source_alone = replace(recipe, requires=(), with_framework=False, cuda_architectures="")
        return source_alone, locked.version
    if location.kind == "git":
        if recipe:
            with suppress(source.GoneError):
                return source.of_git(location, settings, recipe.commit)
        return source.of_git(location, settings)
    if location.kind == "path":
        return source.of_path(location, settings), ""
    recipe = Recipe(
        kind=location.kind,
        location=location.url,
        sha256=source.downloaded(location.url, location.sha256, location.file, settings),
        subdirectory=location.subdirectory,
    )
    return recipe, ""


def requirements(link: Listed, settings: Settings) -> tuple[str, ...]:
    """Return the declared requirements of a release's source.

    The result is empty if the source is unavailable.
    """
    try:
        recipe = source.of_release(link, settings)
        inputs = f"{recipe.sha256} stated-2"
        read = partial(_requirements, recipe, settings)
        return Store.of(settings).remembered(inputs, tuple[str, ...], read)
    except BuildError:
        return ()


def _requirements(recipe: Recipe, settings: Settings) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="envbuilder-source-") as folder:
        built = source.unpack(recipe, settings, Path(folder, "source"), static_metadata.FILES)
        metadata = static_metadata.declared(built) or static_metadata.recorded(built)
    from packaging.requirements import InvalidRequirement, Requirement

    valid = []
    for line in metadata.requires_dist if metadata else ():
        with suppress(InvalidRequirement):
            valid.append(str(Requirement(line)))
    return tuple(valid)


def of_framework(target: Target) -> tuple[File, ...]:
    """Return a target's framework wheels and the wheels that they require.

    The result is empty if the target has no framework. Otherwise, the result includes numpy, which
    extensions often need without declaring it.
    """
    wheels = {file.name: file for file in target.of_kind("wheel") if file.recipe is None}
    todo = [name for name in wheels if frameworks.of_name(name) or name == "numpy"]
    if not any(file.requires for file in wheels.values()):
        todo = [*wheels] if todo else []  # a profile's lock does not say what requires what
    reached: dict[str, File] = {}
    while todo:
        name = todo.pop()
        if name in wheels and name not in reached:
            reached[name] = wheels[name]
            todo += wheels[name].requires
    return tuple(reached[name] for name in sorted(reached))


def as_source(file: File) -> File:
    """Return the source from which a package is built, as a file for the store."""
    assert file.recipe is not None, "it is built"
    sdist = file.recipe.location.rpartition("/")[2] if file.recipe.kind == "sdist" else ""
    return replace(
        file,
        kind="source",
        file=sdist or f"{file.name}.tar",
        sha256=file.recipe.sha256,
        size=None,
    )


def bundled_sources(target: Target) -> tuple[File, ...]:
    """Return the files that a machine without a network needs to rebuild a target's packages."""
    return (*target.build_files, *(as_source(file) for file in target.files if file.is_built))


def fetch(
    files: Sequence[File],
    target: Target,
    settings: Settings,
    progress: Progress,
    arrived: Callable[[File], object] = lambda file: None,
) -> int:
    """Download a target's files into the store, and build those that have a recipe.

    Return how many files were missing. `arrived` is called for each downloaded file while others
    are still being downloaded. Raise `BuildError` in the same cases as `packages.fetch`, and if a
    build produces a different wheel than the one in the lock.
    """
    store = Store.of(settings)
    missing = [f for f in files if f.recipe and not store.has(f.sha256)]
    ready = [f for f in files if not f.recipe]
    count = downloads.fetch(ready, target, settings, progress, arrived)
    builder = WheelBuilder(settings, progress.note)
    for file in missing:
        assert file.recipe is not None, "those were chosen"
        actual = file.sha256
        if file.source == PRUNED:
            actual = _pruned(file, target, settings, progress).sha256
        else:
            source.obtain(file.name, file.recipe, settings)
            if file.kind == "wheel" and file.is_built:
                actual = _built(file, target, builder).sha256
        if actual != file.sha256:
            raise _mismatch(file.name, file.sha256, actual)
    return count + len(missing)


def build_sources(target: Target, settings: Settings, progress: Progress) -> Target:
    """Build a target's sources, and return the target with wheels in place of the sources.

    The target must be for this machine's platform.
    """
    builder = WheelBuilder(settings, progress.note)
    built = []
    for file in target.files:
        if file.kind == "source" and file.recipe:
            source.obtain(file.name, file.recipe, settings)
            built.append(_wheel_file(file, _built(file, target, builder), file.recipe))
        else:
            built.append(file)
    return replace(target, files=tuple(built))


def builders(file: File, target: Target) -> tuple[File, ...]:
    """Return the wheels that must be installed to build one of a target's packages."""
    recipe = file.recipe
    assert recipe is not None, "it is built"
    beside = of_framework(target) if recipe.with_framework else ()
    by_name = {file.name: file for file in beside}
    for need in target.build_files:
        if need.sha256 in recipe.requires:
            by_name[need.name] = need
    return tuple(by_name[name] for name in sorted(by_name))


def _built(file: File, target: Target, builder: WheelBuilder) -> Wheel:
    """Return the wheel built from a locked source, using the build requirements in the lock.

    Raise `BuildError` if the wheel can be built only on another platform.
    """
    needs = builders(file, target)
    assert file.recipe is not None, "it is built"
    foreign = [n.file for n in needs if not n.file.endswith("-any.whl")]
    compiled = file.kind == "source" or not file.file.endswith("-any.whl")
    if builder.platform != target.platform and (compiled or foreign):
        raise BuildError(
            f"{file.name} {file.version}: there is no wheel, and only {target.platform} machines"
            " can build one",
            Hint(
                "Build on that platform, render a Dockerfile, which builds it in the image, or"
                " transfer the wheel in a bundle",
                ("bundle", "--output", "FILE.tar"),
            ),
        )
    builder.first([target.python])
    return builder.built(file.name, file.recipe, file.version, target, needs)
