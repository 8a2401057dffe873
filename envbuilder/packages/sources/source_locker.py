"""Turn packages without wheels into locked wheels.

A lock names the source, and the wheels that build it, by hash, so whoever has the lock can build
the wheel again. Pure Python gives the same bytes everywhere; a machine that gets others reports it.
The store keeps each wheel by its hash, and under a key over everything that decided it.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import console, types
from envbuilder.core.errors import BuildError, EnvbuilderError, Hint, InvalidError
from envbuilder.core.text import escaped
from envbuilder.packages import fetch as downloads
from envbuilder.packages.python.uv import Offer, UnresolvableError
from envbuilder.packages.sources import sealed, source, static_metadata
from envbuilder.packages.sources.wheel_builder import (
    BuildRequirements,
    FrameworkError,
    Wheel,
    WheelBuilder,
    merged,
    mismatch,
)
from envbuilder.packages.store import Store
from envbuilder.profiles import frameworks
from envbuilder.profiles.lock import BUILT, DIRECT, PRUNED, File, Recipe, Target

if TYPE_CHECKING:
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.packages.python.upstream import Listed
    from envbuilder.packages.sources.static_metadata import Metadata
    from envbuilder.profiles.profile import Resolution

WITH_FRAMEWORK = frozenset(
    {
        "apex",
        "causal-conv1d",
        "detectron2",
        "flash-attn",
        "fused-ssim",
        "mamba-ssm",
        "pytorch3d",
        "simple-knn",
        "diff-gaussian-rasterization",
        "tinycudann",
        "torchsort",
        "torch-cluster",
        "torch-scatter",
        "torch-sparse",
        "torch-spline-conv",
        "nvdiffrast",
        "mmcv",
        "mmcv-full",
        "natten",
        "pyg-lib",
        "gsplat",
        "xformers",
        "torchsparse",
    }
)
"""Packages whose build imports the framework although they do not say so, mostly in a setup.py."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A release of a package that is built from source: what uv needs in order to choose it."""

    name: str
    version: str
    requires_dist: tuple[str, ...]
    requires_python: str
    recipe: Recipe
    """Without the wheels that it requires, which depend on the target."""
    size: int | None = None
    """Bytes of a wheel that is not built."""

    @property
    def offer(self) -> Offer:
        """A wheel that fits every target, in place of the one that is built for it."""
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
    """A candidate, how it is built, and its wheel if it was."""

    candidate: Candidate
    plan: BuildRequirements
    wheel: Wheel | None
    python: str


_REMEMBERED: dict[tuple[object, ...], _Prepared | EnvbuilderError] = {}
"""The result of each `prepare`: profiles of a project, locked side by side, ask for the same."""
_ASKING = threading.Lock()


class SourceLocker:
    """Turns packages without wheels into locked wheels; each source is fetched and read once."""

    def __init__(
        self,
        resolution: Resolution,
        settings: Settings,
        on_progress: Callable[[str], None] = lambda _: None,
        elsewhere: Callable[[str, str], Sequence[str] | None] = lambda *_: None,
    ) -> None:
        """`elsewhere` returns what a release requires by a wheel for another platform."""
        self._resolution = resolution
        self._settings = settings
        self._report = on_progress
        self._elsewhere = elsewhere
        self._by_source: dict[str, Candidate] = {}
        self._plans: dict[str, BuildRequirements] = {}
        self._failures: set[str] = set()
        self._wheels: dict[tuple[str, types.Platform | None, str, str], Wheel] = {}
        self._builder = WheelBuilder(settings, on_progress)

    def allows(self, name: str) -> bool:
        """Return whether the project consents to building a package."""
        build = self._resolution.build
        return build if isinstance(build, bool) else types.canonical(name) in build

    def prepare(self, name: str, specifier: str = "", *, pythons: Sequence[str]) -> Candidate:
        """Return the newest release of a package that can be built and that a specifier admits.

        Its source is the one that the project names, else that of an index; it is fetched, and read
        for what it requires. Only if it does not state that, it is built. Raises `InvalidError`
        without consent or such a release, `BuildError` if it cannot be fetched or built. A wheel,
        which the project names by its URL, needs no consent: nothing of it runs.
        """
        name = types.canonical(name)
        location = self._resolution.sources.get(name, "")
        as_of = self._resolution.as_of or ""
        if not self.allows(name) and source.located(location).kind != "wheel":
            raise InvalidError(
                f"{name}: has no wheel, and is not allowed to be built: its own code would run",
                f"To allow it: build_from_source: [{name}] in envbuilder.yaml.",
            )
        key = (self._settings.cache_dir, name, specifier, location, as_of, tuple(pythons))
        with _ASKING:
            if key not in _REMEMBERED:
                try:
                    _REMEMBERED[key] = self._prepare(name, specifier, location, pythons)
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
        self, name: str, specifier: str, location: str, pythons: Sequence[str]
    ) -> _Prepared:
        from packaging.specifiers import SpecifierSet

        settings = self._settings
        versions = SpecifierSet(specifier)
        self._report(f"{name}: fetching its source")
        version = ""
        elsewhere = None
        if location:
            recipe, version = _named(source.located(location), settings)
        else:
            as_of = self._resolution.as_of or ""
            release, link = source.newest(name, versions, pythons, as_of)
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
                f"{name}: its source is of {escaped(metadata.name)}", "Name it by that name."
            )
        if not versions.contains(metadata.version, prereleases=True):
            raise InvalidError(
                f"{name}: {specifier} is required, but its source is {escaped(metadata.version)}"
            )
        candidate = Candidate(
            name=name,
            version=metadata.version,
            requires_dist=metadata.requires_dist,
            requires_python=metadata.requires_python,
            recipe=replace(recipe, with_framework=plan.with_framework),
            size=size,
        )
        return _Prepared(candidate=candidate, plan=plan, wheel=wheel, python=python)

    def _read(
        self,
        name: str,
        recipe: Recipe,
        version: str,
        pythons: Sequence[str],
        elsewhere: Metadata | None,
    ) -> tuple[Metadata, BuildRequirements, Wheel | None, str]:
        """Return what a source requires, what builds it, and its wheel if that had to be built.

        `elsewhere`: what wheels for other platforms say, for which nothing is built.
        """
        with tempfile.TemporaryDirectory(prefix="envbuilder-source-") as folder:
            try:
                built = source.unpack(recipe, self._settings, Path(folder, "source"))
                requires = static_metadata.backend(built).requires
                extends_cuda = static_metadata.extends_cuda(built)
                cuda = extends_cuda or any(built.rglob("*.cu"))
                metadata = elsewhere or static_metadata.declared(built)
                likely = static_metadata.recorded(built) or static_metadata.shown(built, version)
            except BuildError as error:
                raise BuildError(f"{name}: {error.message}", error.hints) from error
        plan = BuildRequirements(requires=(), as_of=self._resolution.as_of or "", cuda=cuda)
        plan = plan.with_more(requires)
        if extends_cuda or name in WITH_FRAMEWORK:
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
                f"{name}: its build needs the framework, and its source does not state what it"
                " requires",
                "Take a release from the package index, whose source states that.",
            )
        return metadata, plan, None, ""

    def _failed(self, name: str, error: BuildError) -> None:
        """Say that a build failed, once: the source alone is enough to lock."""
        if name not in self._failures:
            self._failures.add(name)
            self._report(f"note: {name} is locked by its source, which cannot be built here now")
            self._report(error.message)

    def finish(self, target: Target) -> Target:
        """Return a resolved target with wheels in place of what is offered to be built.

        What is pure Python is built once for all targets; what is compiled, if the target is this
        machine's. Otherwise the source stays, which `build` turns into a wheel where it fits.
        """
        build_files: set[File] = set()
        finished = []
        for file in target.files:
            if file.source == DIRECT and file.recipe is None:
                file = replace(file, recipe=self._by_source[file.sha256].recipe)  # noqa: PLW2901
            elif file.source == PRUNED and file.recipe:
                self._report(sealed.prune_note(file))
                downloads.fetch([sealed.unpruned(file)], target, self._settings, console.progress())
                file = sealed.prune(file, target.python, self._settings)  # noqa: PLW2901
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
        pure = {k[-1]: w for k, w in wheels.items() if k[0] == sha256 and w.is_pure}
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
                f"{file.name}: its source states version {candidate.version}, but its build is"
                f" {escaped(wheel.metadata.version)}"
            )
        return _wheel_file(file, wheel, recipe), needs

    def _needs(self, name: str, plan: BuildRequirements, target: Target) -> tuple[File, ...]:
        """Return the wheels that build a package, else in the versions that the target has."""
        beside = plan.beside({file.name: file.version for file in target.of_kind("wheel")})
        failure = ""
        for each in dict.fromkeys((plan, beside)):
            try:
                return self._builder.resolved(each, target.platform, target.python)
            except UnresolvableError as error:
                failure = str(error)
        raise BuildError(
            f"{name}: its build requirements cannot be installed on that target: {failure}"
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


def _named(location: source.Location, settings: Settings) -> tuple[Recipe, str]:
    """Return the recipe of a source that the project names, and its version if it is tagged."""
    if location.kind == "git":
        return source.of_git(location, settings)
    if location.kind == "path":
        return source.of_path(location, settings), ""
    sha256 = source.downloaded(location.url, location.sha256, location.file, settings)
    recipe = Recipe(
        kind=location.kind,
        location=location.url,
        sha256=sha256,
        subdirectory=location.subdirectory,
    )
    return recipe, ""


def requirements(link: Listed, settings: Settings) -> tuple[str, ...]:
    """Return what the source of a release says that it requires; nothing if it cannot be had."""
    try:
        recipe = source.of_release(link, settings)
        inputs = f"{recipe.sha256} stated-1"
        read = partial(_requirements, recipe, settings)
        return Store.of(settings).remembered(inputs, tuple[str, ...], read)
    except BuildError:
        return ()


def _requirements(recipe: Recipe, settings: Settings) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="envbuilder-source-") as folder:
        built = source.unpack(recipe, settings, Path(folder, "source"), static_metadata.FILES)
        metadata = static_metadata.declared(built) or static_metadata.recorded(built)
    return metadata.requires_dist if metadata else ()


def of_framework(target: Target) -> tuple[File, ...]:
    """Return a target's wheels of the framework, and what they require; none without one.

    numpy is among them, which extensions often need without saying so.
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
    """Return the source of a package that is built, as a file of the store."""
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
    """Return what a machine without a network needs to build a target's packages again."""
    return (*target.build_files, *(as_source(file) for file in target.files if file.is_built))


def fetch(files: Sequence[File], target: Target, settings: Settings, progress: Progress) -> int:
    """Fetch files of a target into the store, and build those that have a recipe.

    Return how many were missing. Raise `BuildError` as `packages.fetch` does, and if a build gives
    another wheel than the locked one.
    """
    store = Store.of(settings)
    missing = [f for f in files if f.recipe and not store.has(f.sha256)]
    count = downloads.fetch([f for f in files if not f.recipe], target, settings, progress)
    builder = WheelBuilder(settings, progress.note)
    for file in missing:
        assert file.recipe is not None, "those were chosen"
        actual = file.sha256
        if file.source == PRUNED:
            downloads.fetch([sealed.unpruned(file)], target, settings, progress)
            actual = sealed.prune(file, target.python, settings).sha256
        else:
            source.obtain(file.name, file.recipe, settings)
            if file.kind == "wheel" and file.is_built:
                actual = _built(file, target, builder).sha256
        if actual != file.sha256:
            raise mismatch(file.name, file.sha256, actual)
    return count + len(missing)


def build_sources(target: Target, settings: Settings, progress: Progress) -> Target:
    """Return a target of this machine's platform with wheels in place of its sources."""
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
    """Return the wheels that are installed to build a package of a target."""
    recipe = file.recipe
    assert recipe is not None, "it is built"
    needs = (need for need in target.build_files if need.sha256 in recipe.requires)
    return merged(needs, of_framework(target) if recipe.with_framework else ())


def _built(file: File, target: Target, builder: WheelBuilder) -> Wheel:
    """Return the wheel that is built from a locked source, with what the lock names for that."""
    recipe = file.recipe
    needs = builders(file, target)
    assert recipe is not None, "it is built"
    foreign = [n.file for n in needs if not n.file.endswith("-any.whl")]
    compiled = file.kind == "source" or not file.file.endswith("-any.whl")
    if builder.platform != target.platform and (compiled or foreign):
        raise BuildError(
            f"{file.name} {file.version}: has no wheel, and only {target.platform} can build it",
            Hint(
                "Build there. A rendered Dockerfile builds it inside. Or bring it from there in a"
                " bundle",
                ("bundle", "--output", "FILE.tar"),
            ),
        )
    builder.first([target.python])
    return builder.built(file.name, recipe, file.version, target, needs)
