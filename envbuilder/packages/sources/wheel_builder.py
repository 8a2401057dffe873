"""Build a source on this machine: with which interpreter, with what installed, and only once.

Old sources need older tools, and some do not say what they need. That is tried, in a fixed order.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import console, files, process, types
from envbuilder.core.errors import BuildError, Hint, ToolError
from envbuilder.host import interpreters as installed, probe
from envbuilder.packages import fetch as downloads, interpreters
from envbuilder.packages.python.uv import UnresolvableError, started
from envbuilder.packages.sources import sealed, source, static_metadata
from envbuilder.packages.sources.static_metadata import Metadata
from envbuilder.packages.store import Store
from envbuilder.profiles import frameworks
from envbuilder.profiles.lock import File, Recipe, Target
from envbuilder.profiles.requirements import distribution

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

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
"""Packages that a setup.py imports without declaring them."""
_OTHER_NAME = {"skbuild": "scikit-build", "pkg-resources": "setuptools<81"}
"""The same, by modules that are not named like them."""
_OLDER = (
    ("setuptools<81",),
    ("setuptools<72", "cython<3"),
    ("setuptools<66", "wheel<0.40", "cython<3"),
    ("setuptools<58", "wheel<0.40", "cython<3"),
)
"""Constraints with which older sources still build, tried in this order."""
_BESIDE = ("ninja", "packaging", "psutil")
_BESIDE_OLD = ("setuptools<70",)
"""What PyTorch's builder of extensions imports up to 2.1: pkg_resources with packaging in it."""
_MISSING = re.compile(r"No module named '?([A-Za-z0-9_]+)")
_COMPILING = re.compile(r"command '[^']*' failed|ninja: build stopped|CMake Error")
_ATTEMPTS = 12
_FAILED: dict[tuple[object, ...], BuildError] = {}
"""Builds that failed in this process: several profiles of a project ask for the same."""
_FORM = 2
"""Changes whenever the same recipe is to give another wheel."""


class BuildRequirements(Struct, frozen=True, kw_only=True):
    """What is installed to build a source."""

    requires: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    as_of: str = ""
    with_framework: bool = False
    cuda: bool = False
    """Whether the source has code for CUDA."""
    toolkit: tuple[str, ...] = ()
    """Requirements in addition that compile it for a target."""

    def with_more(self, requirements: Iterable[str]) -> BuildRequirements:
        """Return the plan with more requirements; the framework is the target's own."""
        more = [*requirements]
        ours = [r for r in more if frameworks.of_build(distribution(r))]
        added = [r for r in more if r not in (*ours, *self.requires)]
        plan = replace(self, requires=(*self.requires, *added))
        return plan.beside_framework() if ours else plan

    def beside(self, versions: Mapping[str, str]) -> BuildRequirements:
        """Return the plan for a build beside packages, which it uses in the versions they have.

        What an old release was built with, such as numpy==1.19.3, may have no wheel for a platform.
        """
        named = [(distribution(line), line) for line in self.requires]
        pinned = (f"{n}=={versions[n]}" if n in versions else line for n, line in named)
        return replace(self, requires=tuple(dict.fromkeys(pinned)))

    def beside_framework(self) -> BuildRequirements:
        """Return the plan for a build that imports the framework, with what such builds need.

        It is not tried while locking, and they rarely say so themselves.
        """
        named = {distribution(r) for r in self.requires}
        more = tuple(r for r in _BESIDE if r not in named)
        return replace(
            self,
            requires=(*self.requires, *more),
            constraints=self.constraints or _BESIDE_OLD,
            with_framework=True,
        )


class Wheel(Struct, frozen=True, kw_only=True):
    """A wheel that was built, which is in the store."""

    file: str
    sha256: str
    size: int
    metadata: Metadata

    @property
    def is_pure(self) -> bool:
        """Whether it fits every platform and Python 3."""
        return self.file.endswith("-none-any.whl")


class BuiltWheel(Struct, frozen=True, kw_only=True):
    """A wheel, and what was installed to build it."""

    plan: BuildRequirements
    wheel: Wheel


class _MoreError(Exception):
    """A backend asks for more requirements, which are the argument."""


class FrameworkError(BuildError):
    """A build imports the framework, which was not installed for it."""


class WheelBuilder:
    """Builds sources on this machine, and finds what that requires."""

    def __init__(self, settings: Settings, on_progress: Callable[[str], None]) -> None:
        self._settings = settings
        self._report = on_progress
        self._store = Store.of(settings)
        self._resolved: dict[tuple[BuildRequirements, str, str], tuple[File, ...]] = {}
        self._interpreters: dict[str, Path | None] = {}
        self._noted = set[str]()

    @cached_property
    def platform(self) -> types.Platform | None:
        """The platform of this machine, if any lock has it."""
        return probe.host().platform

    def first(self, pythons: Sequence[str]) -> str:
        """Return the first of some Pythons that can build here; raise `ToolError` without one."""
        for python in pythons:
            if self.has(python):
                return python
        raise ToolError(
            f"no Python {' or '.join(pythons)} on this machine, which builds from source need",
            f"Install one: python -m uv python install {pythons[0]}",
        )

    def has(self, python: str) -> bool:
        """Return whether this machine has a Python, or can get it."""
        if python not in self._interpreters:
            self._interpreters[python] = self._interpreter(python)
        return self._interpreters[python] is not None

    def _interpreter(self, python: str) -> Path | None:
        answers = installed.Answers(self._settings.interpreters_dir)
        try:
            machine = probe.host().machine
            return installed.find(python, [python], machine, answers=answers).path
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
        """Return the wheel that is built from a source, and what was installed to build it.

        Old sources need older tools, and some do not say what they need: that is tried. Raise
        `FrameworkError` if the build needs the framework.
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
        first: BuildError | None = None
        for _ in range(_ATTEMPTS):
            try:
                needs = self.resolved(plan, self.platform, python)
                wheel = self.built(name, recipe, version, target, needs, set(plan.requires))
            except _MoreError as more:
                plan = plan.with_more(more.args)
            except UnresolvableError as error:
                first = first or BuildError(
                    f"{name}: its build requirements cannot be installed: {error}"
                )
                if not plan.as_of:
                    raise first from error
                plan = replace(plan, as_of="")
            except sealed.FailedError as error:
                first = first or BuildError(f"{name}: {error.message}", error.hints)
                another = _another(plan, error.log)
                if another is None:
                    raise first from error
                plan = another
            else:
                return BuiltWheel(plan=plan, wheel=wheel)
            if plan.with_framework:
                raise FrameworkError(f"{name}: its build needs the framework")
        raise first or BuildError(f"{name}: its build asks for ever more requirements")

    def built(
        self,
        name: str,
        recipe: Recipe,
        version: str,
        target: Target,
        needs: Sequence[File],
        asks: Collection[str] = (),
    ) -> Wheel:
        """Return the wheel that is built from a source with these wheels, here or earlier.

        `asks`: the requirements that are known; raise `_MoreError` if the backend has others.
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
                    raise mismatch(name, wheel.sha256, again.sha256)
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
            sha256 = files.file_sha256(wheel)
            self._store.take_file(wheel, sha256)
            size = wheel.stat().st_size
        for note in {*notes} - self._noted:
            self._noted.add(note)
            self._report(f"note: {name}: {note}")
        return Wheel(file=path.name, sha256=sha256, size=size, metadata=metadata)

    def resolved(
        self, plan: BuildRequirements, platform: types.Platform, python: str
    ) -> tuple[File, ...]:
        """Return the wheels for what a plan requires; raise `UnresolvableError` if there are none.

        Versions are those of this machine's platform, as far as they fit.
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
            self._resolved[key] = tuple(each.file for each in resolved)
        return self._resolved.get(key, ())


def _another(plan: BuildRequirements, log: str) -> BuildRequirements | None:
    """Return what else to try after a build that failed; None if nothing is left."""
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


def merged(needs: Iterable[File], framework: Iterable[File]) -> tuple[File, ...]:
    """Return what is installed to build: what is asked for, and the framework beside it."""
    named = {file.name: file for file in framework} | {file.name: file for file in needs}
    return tuple(named[name] for name in sorted(named))


def mismatch(name: str, expected: str, actual: str) -> BuildError:
    """Return the error for a build that gives another wheel than the locked one."""
    return BuildError(
        f"{name}: its build gives another result on this machine: expected sha256 {expected}, got"
        f" {actual}",
        (
            Hint(
                "Its build depends on more than its source and what is locked. A bundle brings the"
                " wheel that was locked",
                ("bundle", "--output", "FILE.tar"),
            ),
            Hint("Or lock again here", ("lock",)),
        ),
    )
