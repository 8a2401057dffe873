"""The profiles and locks that a command uses, adapted to the project if there is one.

A profile that is adapted to a project is called a variant. The project's files determine the
release of the framework and its companions, and the hardware determines the build.
"""

from __future__ import annotations

import contextlib
import hashlib
from functools import cached_property
from itertools import filterfalse, product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from envbuilder.core.decoding import dotted, place
from envbuilder.core.errors import InvalidError, shown
from envbuilder.core.files import file_sha256, read_text
from envbuilder.core.settings import DEFAULT, LOCKS, PROJECT_FILE, Definition, Settings
from envbuilder.profiles import backends, frameworks, profile as profile_files, releases
from envbuilder.profiles.frameworks import FRAMEWORKS, is_build_extra
from envbuilder.profiles.library import Library, OtherFrameworkError
from envbuilder.profiles.profile import Profile, Python, suggestion, variant_of
from envbuilder.profiles.requirements import applies, distribution, pin
from envbuilder.project import environments, release, sources
from envbuilder.project.lines import Line, on_hardware, parse, with_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

    from envbuilder.core import types
    from envbuilder.profiles import fit
    from envbuilder.profiles.lock import Decided
    from envbuilder.project.environments import Contents
    from envbuilder.project.release import Decision, Limits, Offered


class ReleaseOptions(NamedTuple):
    """Options for choosing framework releases and for keeping the decisions that locks record."""

    offered: Offered = attrgetter("pythons")
    """Function that returns the Python versions for which the hash of a build's wheel is
    available."""
    keep: Literal["all", "usable", "none"] = "all"
    """Which locks keep their recorded decisions, as long as these decisions are still valid."""
    upgraded: frozenset[str] = frozenset()
    """Packages to upgrade. If this includes a framework, its release is chosen again."""
    pythons: Mapping[str, tuple[Line, ...]] = {}
    required: Mapping[str, Line] = {}
    """Limits that the packages of each environment impose, by environment name.

    `pythons` limits the Python version and `required` limits the release. Each limit also says
    which packages need it.
    """


ANY = ReleaseOptions()


class ProjectProfiles:
    """The variants of one environment of a project, one for each of the project's profiles."""

    def __init__(
        self,
        definition: Definition,
        environment: str,
        project: Path,
        folders: Sequence[Path],
        options: ReleaseOptions = ANY,
        *,
        has_folders: bool = True,
        loaded: dict[str, Profile] | None = None,
        read: environments.Read | None = None,
    ) -> None:
        """Prepare the variants of an environment.

        The environment's files are not read until they are needed. `has_folders` says whether the
        folders of the project's sources exist, which is not the case in a bundle. `loaded` contains
        the profiles that were already read from `folders`, by name. `read` is the function that
        reads the requirements in a file, by default `forms.read`. Raise `InvalidError` if the
        environment does not exist.
        """
        environments.merged(definition, environment)  # raises, before anything is done, if missing
        self.environment = environment
        self._definition = definition
        self._project = project
        self._folders = folders
        self._options = options
        self._has_folders = has_folders
        self._decided: dict[str, Decision] = {}
        self._profiles: dict[str, Profile] = {} if loaded is None else loaded
        self._read = read

    def read_files(self) -> dict[str, str]:
        """Return the SHA-256 of each project file that was read, by path."""
        return {file: file_sha256(self._project / file) for file in self.contents.read_from}

    def names(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """Return the names of the profiles that the project lists.

        If the project has no list, return the names of all profiles, except profiles for older GPUs
        that offer no additional builds.
        """
        profiles = self._definition.profiles
        if profiles is not None:
            return tuple(sorted(profiles))
        return tuple(filterfalse(self._is_twin, profile_files.names(folders)))

    def _is_twin(self, name: str) -> bool:
        """Return whether a profile for older GPUs has no builds that its main profile lacks.

        The main profile is the one from which the profile for older GPUs is derived.
        """
        gpu = variant_of(name)
        if gpu is None:
            return False
        usual = self.unadapted(gpu)
        other = self.unadapted(name)
        if not usual.builds or other.framework != self.framework[0]:
            return False
        with contextlib.suppress(InvalidError):
            chosen = self.decision(usual).chosen
            older = other.choices(chosen.release).get(chosen.release)
            return older is not None and {*older.builds} <= {*chosen.builds}
        return False

    def offers(self, name: str) -> fit.Offers:
        """Return a profile's releases, each with the reason why it is excluded.

        The reason is empty if the release is allowed.
        """
        profile = self.unadapted(name)
        return [(c, self.limits.conflict_with(profile, c)) for c in profile.choices().values()]

    def unadapted(self, name: str) -> Profile:
        """Return a profile without the project's changes. Each profile is read only once."""
        if name not in self._profiles:
            self._profiles[name] = profile_files.load(name, self._folders)
        return self._profiles[name]

    def alias_of(self, name: str) -> str:
        """Return the name of the profile for a kind of hardware and the project's framework.

        For example, return `jax-cuda` for `cuda` if the project uses JAX. Return `name` unchanged
        if there is no such profile.
        """
        other = f"{self.framework[0]}-{name}"
        return other if other in profile_files.names(self._folders) else name

    def of(self, profile: Profile) -> Profile:
        """Return a profile adapted to the environment.

        Raise `InvalidError` if the project does not list the profile, if the profile is for another
        framework, or if one of the project's requirements cannot be combined with the profile.
        """
        profiles = self._definition.profiles
        if profiles is not None and profile.name not in profiles:
            raise InvalidError(
                f"the project does not support profile '{profile.name}'",
                f"Add it to profiles: in {PROJECT_FILE}, which lists {', '.join(profiles)}.",
            )
        name, reason = self.framework
        if profile.framework != name:
            because = f" ({reason})" if reason else ""
            raise OtherFrameworkError(
                f"profile '{profile.name}' has {FRAMEWORKS[profile.framework].title}, but the"
                f" project uses {FRAMEWORKS[name].title}{because}",
                f"Name another profile, or write framework: {profile.framework} into"
                f" {PROJECT_FILE}.",
            )
        for package in map(distribution, profile.requirements):
            if package in self.contents.resolution.exclude:
                where = environments.place_of_exclusion(self._definition, self._project, package)
                raise InvalidError(
                    f"{where}: {package} cannot be excluded: it comes from profile '{profile.name}'"
                    ", and all environments of this profile contain it",
                    "Remove the line. To support only some profiles, list them, for example"
                    " profiles: [cpu, cuda]",
                )
        if profile.builds:
            return adapt(profile, self.contents, self.decision(profile))
        for line in self.limits.lines:
            tuple(_added(profile, profile.python.supported, line))  # raises, if it has another
        return adapt(profile, self.contents)

    def decision(self, profile: Profile) -> Decision:
        """Return the release and the Python version for a profile that has several builds.

        Raise `InvalidError` if the project allows none of the profile's releases.
        """
        if profile.name not in self._decided:
            stays = release.stays(profile, self.limits, self._locked(profile))
            decision = stays or self._decisions.get(profile.name)
            if decision is None:
                raise release.impossible(profile, self.limits)
            chosen = release.of_same_cuda(profile, decision.chosen, self.contents.requirements)
            self._decided[profile.name] = replace(decision, chosen=chosen)
        return self._decided[profile.name]

    @cached_property
    def _decisions(self) -> dict[str, Decision]:
        """The release and the Python version of each of the project's profiles, chosen together."""
        names = self._definition.profiles or profile_files.names(self._folders)
        every = map(self.unadapted, names)
        profiles = [p for p in every if p.builds and p.framework == self.framework[0]]
        return release.decide(self.limits, profiles, self._locked, self._options.offered)

    def _locked(self, profile: Profile) -> Decided | None:
        """Return the decision in a profile's lock, or None if there is no decision to keep."""
        moves = self._options.upgraded & FRAMEWORKS[profile.framework].names
        if moves or self._options.keep == "none":
            return None
        return release.locked(self.lock_path(profile.name), usable=self._options.keep == "usable")

    @cached_property
    def limits(self) -> Limits:
        """The project's limits on the release of its framework and on the Python version."""
        name = self.framework[0]
        framework = FRAMEWORKS[name]
        contents = self.contents
        lines = []
        for version, where in self._stated("framework_version"):
            exact = version if version.count(".") > 1 else f"{version}.*"
            lines.append(Line(f"{name}=={exact}", where))
        every = (*contents.requirements, *contents.constraints)
        brought = framework.names | framework.companions
        lines += [line for line in every if line.name in brought and not line.locked]
        ended = {row.distribution: row for row in releases.unstated() if row.last}
        for line in every:
            row = ended.get(line.name)
            if row and parse(line.text, line.where).specifier.contains(row.version):
                lines.append(Line(row.last, f"{line.where} ({line.name})"))
        of_files = {line.text for line in lines}
        of_files.update(f"python {line.text}" for line in contents.pythons)
        replaced = framework.names.intersection(map(distribution, contents.resolution.overrides))
        for day, where in self._stated("as_of"):
            newest = releases.newest(name, day.isoformat())
            of_files.add(f"as_of {day}")
            if not replaced:  # an override holds whoever requires the package, and on any day
                lines.append(Line(f"{name}<={newest}", where))
        pythons = self._options.pythons.get(self.environment, ())
        required = self._options.required.get(self.environment)
        texts = (*(line.text for line in every), *contents.resolution.overrides)
        return release.Limits(
            framework=name,
            lines=tuple(lines),
            pythons=(*contents.pythons, *pythons),
            preferred=release.of_lock(every, framework.names),
            required=required,
            stated=tuple(sorted(of_files)),
            packages=hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest(),
            by_packages=bool(pythons or required),
        )

    def _stated(self, key: str) -> Iterator[tuple[Any, str]]:
        return environments.entries(self._definition, DEFAULT, self._project, key)

    @cached_property
    def framework(self) -> tuple[types.Framework, str]:
        """The project's framework, and the reason why it was chosen.

        The reason is empty if the default framework is used.
        """
        return framework_of(self._definition, self.contents.requirements)

    def lock_path(self, name: str) -> Path:
        """Return the path of the environment's lock for a profile."""
        return self._project / LOCKS / f"{self.environment}.{name}.json"

    def require_readable(self) -> None:
        """Raise `InvalidError` if the project's files contain errors that affect all hardware."""
        self.contents  # noqa: B018 (read now, and kept)

    @cached_property
    def contents(self) -> Contents:
        """Everything that the environment requires, which is read from files at most once.

        If `framework_version` is set, the files do not determine the framework's release.
        """
        contents = environments.contents(
            self._definition, self.environment, self._project, self._read
        )
        if self._has_folders:
            resolution = sources.with_digests(contents.resolution, self._project)
            contents = replace(contents, resolution=resolution)
        name, _ = framework_of(self._definition, contents.requirements)
        contents = environments.of_framework(contents, self._definition, self._project, name)
        if self._definition.framework_version is None:
            return contents
        return environments.without_releases(contents, name)


def library(settings: Settings) -> Library:
    """Return the profiles of the project, of the user, and of envbuilder itself, in this order.

    If the project defines environments, the profiles are variants for the environment selected in
    the settings. Raise `InvalidError` if there is no such environment.
    """
    folders = profile_files.search_path(settings.project, settings.config_dir)
    return Library(folders, settings.configuration.signatures.locks, of_project(settings))


def of_project(settings: Settings, options: ReleaseOptions = ANY) -> ProjectProfiles | None:
    """Return the project's variants of profiles, or None if no project defines environments.

    Raise `InvalidError` if the environment or a listed profile does not exist.
    """
    if settings.project is None or settings.definition is None:
        if settings.environment != DEFAULT:
            raise InvalidError(
                f"there is no environment '{settings.environment}'",
                f"Environments are defined in {PROJECT_FILE}, which this folder does not have.",
            )
        return None
    definition = settings.definition
    project = settings.project
    folders = profile_files.search_path(project, settings.config_dir)
    available = profile_files.names(folders)
    for number, name in enumerate(definition.profiles or ()):
        if name not in available:
            path = ["profiles", str(number)]
            where = place(PROJECT_FILE, read_text(project / PROJECT_FILE), path)
            raise InvalidError(
                f"{where}: {dotted(path)}unknown profile {shown(name)}",
                suggestion(name, available),
            )
    return ProjectProfiles(definition, settings.environment, project, folders, options)


# Which framework a project is for


def framework_of(definition: Definition, lines: Sequence[Line]) -> tuple[types.Framework, str]:
    """Return a project's framework, and the reason why it was chosen.

    The reason is empty if the default framework is used. If the project's file specifies a
    framework, that framework is used, and all others are treated as ordinary packages. Otherwise, a
    framework that is itself required takes precedence over packages that use a framework. Raise
    `InvalidError` if several frameworks are required and the file specifies none.
    """
    if definition.framework:
        return definition.framework, f"{PROJECT_FILE} names it"
    for row_of in (frameworks.of_name, frameworks.of_user):
        first: dict[types.Framework, Line] = {}
        for line in lines:
            if framework := row_of(line.name):
                marker = parse(line.text, line.where).marker
                if any(applies(marker, *target) for target in release.TARGETS):
                    first.setdefault(framework, line)
        if len(first) > 1:
            (chosen, line), (other, second) = [*first.items()][:2]
            raise InvalidError(
                f"the project requires {FRAMEWORKS[chosen].title} ({line.name}, {line.where}) and"
                f" {FRAMEWORKS[other].title} ({second.name}, {second.where}), but a profile has"
                " only one framework",
                f"Write framework: {chosen} or framework: {other} into {PROJECT_FILE}, which"
                " makes the other an ordinary package from the index. Or list each in its own"
                " environment (environments:).",
            )
        for framework, line in first.items():
            return framework, f"{line.where} requires {line.name}"
    return frameworks.DEFAULT, ""


# A project's variant of a profile


def adapt(profile: Profile, contents: Contents, decision: Decision | None = None) -> Profile:
    """Return a copy of a profile that is adapted to an environment.

    The environment determines the packages, the Python versions, the variables and the system
    packages. If the profile has builds to choose from, `decision` contains the release and the
    Python version. Raise `InvalidError` if a line cannot be combined with the profile.
    """
    environment = contents.environment
    lines, notes = on_hardware(contents.requirements, profile)
    left = {line.name for line in contents.requirements} - {line.name for line in lines}
    elsewhere = tuple(each for each in contents.resolution.sources if each.name not in left)
    resolution = replace(contents.resolution, sources=elsewhere)
    here = tuple(line for line in contents.conda if on_hardware([line], profile)[0] == (line,))
    contents = replace(contents, requirements=lines, conda=here, resolution=resolution)
    if decision:
        python = Python(default=decision.python, supported=(decision.python,))
        if not release.bases(profile, python.supported, managed=False):
            allowed = release.pythons(profile, contents.pythons, decision.chosen)
            python = release.also_for_images(profile, decision.python, allowed)
        profile = profile_files.pinned(profile, decision.chosen)
        build = decision.chosen.builds[0]
        if build != profile.build_on(build.platform):
            profile = replace(profile, builds=(build.build,))
    else:
        python = _python(profile, contents)
    python = replace(python, managed=environment.is_managed or profile.python.managed)
    packages = [p for p in environment.system_packages if p not in profile.system_packages]
    if packages and profile.base and not profile.debian_suite:
        raise InvalidError(
            f"system_packages: profile '{profile.name}' does not name the Debian suite of its"
            " base images",
            "Set debian_suite in the profile.",
        )
    of_conda = (*profile.conda.packages, *(line.text for line in contents.conda))
    from_conda = replace(
        profile.conda,
        channels=tuple(dict.fromkeys((*contents.channels, *profile.conda.channels))),
        packages=tuple(dict.fromkeys(of_conda)),
    )
    names = FRAMEWORKS[profile.framework].names
    overrides = [text for text in contents.resolution.overrides if distribution(text) not in names]
    if len(overrides) < len(contents.resolution.overrides):
        # What replaces the framework chose the build, which holds whatever others require.
        overrides += [text for text in profile.requirements if distribution(text) in names]
    result = replace(
        profile,
        requirements=tuple(_requirements(profile, python.supported, contents.requirements)),
        constraints=(*profile.constraints, *_constraints(profile, python.supported, contents)),
        indexes={**profile.indexes, **_indexes(profile)},
        python=python,
        resolution=replace(
            contents.resolution,
            overrides=tuple(overrides),
            as_of=releases.day(profile.framework, profile.release or "", contents.resolution.as_of),
        ),
        base=release.bases(profile, python.supported, managed=python.managed),
        debian_base={v: base for v, base in profile.debian_base.items() if v in python.supported},
        system_packages=(*profile.system_packages, *packages),
        # Those of the profile are known to be nothing but files.
        unpack_packages=profile.unpack_packages and not packages,
        environment={**profile.environment, **environment.environment},
        conda=from_conda if contents.conda else profile.conda,
        warnings=(*profile.warnings, *(n.removesuffix(".") for n in contents.notes), *notes),
    )
    return replace(result, backends=_backends(result, contents))


def _requirements(profile: Profile, pythons: Sequence[str], lines: Iterable[Line]) -> Iterator[str]:
    """Yield the profile's requirements, then those that the lines add, without duplicates.

    NVIDIA libraries that the framework's builds require are skipped. They may be in the lines
    because `pip freeze` lists them.
    """
    framework = FRAMEWORKS[profile.framework]
    brought = framework.parts | framework.foreign(profile.accelerator)
    yield from profile.requirements
    seen = set(profile.requirements)
    for line in lines:
        if line.name.startswith("nvidia-") and framework.is_library(line.name):
            continue
        for requirement in _added(profile, pythons, line):
            if line.name not in brought and str(requirement) not in seen:
                seen.add(str(requirement))
                yield str(requirement)


def _added(profile: Profile, pythons: Sequence[str], line: Line) -> Iterator[Requirement]:
    """Yield the requirements that a line adds to a profile.

    If the profile pins the package, only the line's extras are added. Raise `InvalidError` if the
    line needs another version of that package.
    """
    from packaging.requirements import Requirement

    framework = FRAMEWORKS[profile.framework]
    requirement = parse(line.text, line.where)
    name = distribution(requirement.name)
    if name not in framework.builds:
        yield requirement
        return
    targets = [t for t in product(profile.platforms, pythons) if applies(requirement.marker, *t)]
    # Another name of the framework, such as tensorflow-gpu, means the profile's build, too.
    names = framework.names if name in framework.names else {name}
    owned = [
        need
        for need in map(Requirement, profile.requirements)
        if distribution(need.name) in names and any(applies(need.marker, *t) for t in targets)
    ]
    if targets and not owned:
        yield requirement
    extras = sorted(e for e in requirement.extras if not is_build_extra(distribution(e)))
    for need in owned:
        version = pin(str(need))
        if version and not release.without_build(requirement.specifier).contains(version, True):
            raise InvalidError(
                f"{line.where}: {line.text}: profile '{profile.name}' has {need.name} {version}",
                "Allow this version, or remove the line, since each profile sets its own. To"
                " support only some profiles, list them, for example profiles: [cpu, cuda]",
            )
        if extras or (not version and requirement.specifier):
            brackets = f"[{','.join(extras)}]" if extras else ""
            markers = " and ".join(f"({m})" for m in (need.marker, requirement.marker) if m)
            versions = "" if version else requirement.specifier
            yield Requirement(with_marker(f"{need.name}{brackets}{versions}", markers))


def _constraints(profile: Profile, pythons: Sequence[str], contents: Contents) -> Iterator[str]:
    """Yield the constraints, except those on packages that every build of the framework pins.

    A project's requirements for components of the framework become constraints, because the profile
    determines which components are installed. The same applies to requirements for a kernel
    compiler that has another name on this hardware.
    """
    framework = FRAMEWORKS[profile.framework]
    for line in contents.constraints:
        name = line.name
        if not framework.is_library(name) and not (line.locked and name in framework.builds):
            yield from map(str, _added(profile, pythons, line))
    for line in contents.requirements:
        requirement = parse(line.text, line.where)
        requirement.extras = set()
        names = framework.parts & {name := line.name}
        if name in framework.foreign(profile.accelerator):
            names = framework.kernel_compilers.get(profile.accelerator, frozenset())
        for each in sorted(names) if requirement.specifier else ():
            requirement.name = each
            yield str(requirement)


def _indexes(profile: Profile) -> dict[str, str]:
    """Return the index for the framework and for each of its companions, by distribution name.

    This is the index that offers the profile's build of the framework. PyPI's builds of PyTorch's
    companions are for CUDA on Linux. They could be installed next to any torch of the same version,
    but importing them would fail.
    """
    framework = FRAMEWORKS[profile.framework]
    source = next((s for name, s in profile.indexes.items() if name in framework.names), None)
    return dict.fromkeys(sorted(framework.names | framework.companions), source) if source else {}


def _python(profile: Profile, contents: Contents) -> Python:
    """Return the Python versions of an environment, which the project and its files must allow.

    If no image can be made with the default version, a second version is added for images. Raise
    `InvalidError` if no version is allowed.
    """
    allowed = release.allowed(profile.python.supported, contents.pythons)
    if not allowed:
        limits = ", ".join(f"{line.text} ({line.where})" for line in contents.pythons)
        raise InvalidError(
            f"the project needs Python {limits}, but profile '{profile.name}' has"
            f" {', '.join(profile.python.supported)}",
            "Change the limits so that they allow one of the profile's versions, or remove the"
            " profile from profiles:.",
        )
    default = profile.python.default if profile.python.default in allowed else allowed[-1]
    return release.also_for_images(profile, default, allowed)


def _backends(profile: Profile, contents: Contents) -> tuple[types.Backend, ...]:
    """Return the backends that can provide the environment; raise `InvalidError` if none can."""
    objections = {backend: _objection(profile, contents, backend) for backend in profile.backends}
    possible = tuple(backend for backend, objection in objections.items() if not objection)
    if not possible:
        reasons = dict.fromkeys(objections.values())
        raise InvalidError(
            f"profile '{profile.name}' has no backend for this project: {'; '.join(reasons)}",
            "Remove the profile from profiles:.",
        )
    return possible


def _objection(profile: Profile, contents: Contents, backend: types.Backend) -> str:
    """Return the reason why a backend cannot provide the environment.

    Return an empty string if it can.
    """
    have = {*(line.name for line in contents.requirements), *contents.environment.system_packages}
    if contents.conda and backend != "conda":
        from envbuilder.project import conda

        if line := conda.first_missing(contents.conda, have):
            return f"{line.where} needs {line.name} from conda"
    if backends.makes_image(backend) and not profile.image_pythons:
        return f"it has no base image with Python {profile.python.default}"
    return ""
