"""Profiles: strict YAML files that define what an environment for one kind of hardware needs.

A profile may extend another profile. Mappings are then merged key by key, all other values are
replaced, and `add_requirements` adds to the inherited requirements. Profiles whose names begin with
`_` exist only to be extended. Profile folders are searched in order, and the folder of shipped
profiles comes last.

The module is long because it describes, reads, merges and checks the keys of a profile.
"""

# No annotations from __future__: msgspec would evaluate the text of each, at every start.

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import resources, types
from envbuilder.core.decoding import Hints, decode
from envbuilder.core.errors import SHOWN, InvalidError, shown
from envbuilder.core.files import parse_shipped, read_text
from envbuilder.host.accelerators import ACCELERATORS, of_gpus
from envbuilder.profiles import backends, frameworks, releases, requirements

_SHIPPED = "pytorch-"
"""Prefix of the index names in the tables of releases."""
IMAGE_PYTHON = "/opt/python"
"""The folder in an image that contains the interpreter from the lock."""


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all types that are read from a profile: immutable, without unknown keys."""


class Python(_Strict, frozen=True, omit_defaults=True):
    """The Python versions (X.Y) that a profile supports, and the default one among them."""

    default: types.PythonVersion
    """The version used unless another one is requested."""
    supported: tuple[types.PythonVersion, ...]
    """The versions for which the lock contains files."""
    managed: bool = False
    """Whether native environments use the interpreter from the lock, identified by its hash,
    instead of one installed on the machine. For images, this depends on the `python_path` of the
    base."""


class Base(_Strict, frozen=True):
    """A base image, identified by its digest. The digest is null if no source provides one."""

    ref: types.ImageRef
    """The image reference without the digest. `base_images:` in the configuration may override
    it."""
    digest: types.Digest | None = None
    date: types.Date | None = None
    """The day on which the image was published. It is the timestamp of all files in images built on
    this base."""
    python_path: types.AbsolutePath = "/usr/local/bin/python3"
    """The path of the Python interpreter in the image. If it is below `/opt/python`, the
    interpreter is the one from the lock, which is added to the image."""
    python_version: str = ""
    """The full version (X.Y.Z) of the interpreter, if a source states the version."""


class DebianBase(_Strict, frozen=True):
    """A base built from locked Debian packages: the suite's minimal system plus `include`."""

    include: tuple[types.DebianPackage, ...]
    """Packages to install in addition to the minimal system. They must include Python."""
    unpacked: tuple[types.Platform, ...] = ()
    """Platforms on which the packages are only unpacked and their scripts are not run."""


class Run(_Strict, frozen=True):
    """The access to devices and memory that a container needs, in terms of `docker run` options."""

    gpus: Annotated[str, Meta(pattern=r"^(all)?\Z")] = ""
    """`all` gives the container every NVIDIA GPU, like `--gpus all`."""
    devices: tuple[types.DevicePath, ...] = ()
    """Device nodes to make available in the container."""
    groups_of: tuple[types.DeviceGlob, ...] = ()
    """Patterns of device nodes. The container joins the groups that own these nodes."""
    volumes: tuple[types.AbsolutePath, ...] = ()
    """Host paths to mount read-only at the same path in the container. Missing paths are skipped.
    """
    shm_size: types.Size = "1g"
    """The size of shared memory, through which DataLoader workers pass their batches."""


class Requires(_Strict, frozen=True):
    """The profile's own requirements for the host, checked before anything is downloaded."""

    driver: Annotated[str, Meta(pattern=r"^[0-9.]*\Z")] = ""
    """The oldest supported version of the GPU vendor's driver, if it cannot be determined from the
    files in the lock."""
    kernels: tuple[types.KernelTarget, ...] = ()
    """The GPUs that all libraries in the wheels support, if no table lists them. They are given as
    CUDA compute capabilities (`9.0`), AMD targets (`gfx1100`) or Intel target names (`bmg`)."""
    kernels_arm64: tuple[types.KernelTarget, ...] = ()
    """The supported GPUs on linux/arm64, if they differ from those on other platforms."""
    kernels_partly: tuple[types.KernelTarget, ...] = ()
    """GPUs that only some of the libraries support. They may work."""
    kernels_ptx: bool = False
    """Whether the wheels also contain PTX for the newest of `kernels`, which newer NVIDIA GPUs can
    run."""
    cpu_flags: tuple[types.CpuFlag, ...] = ()
    """CPU flags that are required. Flags of x86 CPUs are checked only on x86."""
    cpu_flags_wanted: tuple[types.CpuFlag, ...] = ()
    """CPU flags that are needed only for some features."""
    without_cpu_flags: types.Comment = ""
    """What happens on a CPU that lacks one of the required or wanted flags."""
    macos: Annotated[str, Meta(pattern=r"^[0-9.]*\Z")] = ""
    """The oldest supported macOS version, if it cannot be determined from the files in the lock."""


class Fault(_Strict, frozen=True):
    """A known fault in one release of the framework."""

    text: types.Comment
    """The text to print when the fault applies."""
    release: types.FrameworkVersion
    """The release that has the fault."""
    cpu_flags: tuple[types.CpuFlag, ...] = ()
    """CPU flags that the fault depends on. The fault does not occur on a CPU that lacks one of
    them."""


class Expects(_Strict, frozen=True):
    """The results that verification must observe."""

    device: types.Accelerator
    """The device that must do the work."""
    version: types.FrameworkVersion = ""
    """The version that the framework must report. The default is the version pinned by `release` or
    `requirements`. If neither pins a version, any version is accepted."""
    versions: dict[types.PythonVersion, types.FrameworkVersion] = {}
    """The framework version that must be reported with each Python version, if it differs from
    `version`."""
    accuracy: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """The minimum accuracy on the MNIST test images after one epoch. By default, measured limits
    apply, or 0.975 if `images` is set."""
    images: Annotated[int, Meta(ge=10_000, le=60_000)] | None = None
    """The number of training images in an epoch, taken from the start of MNIST's 60,000 images."""
    precision: Annotated[str, Meta(pattern=r"^float32\Z")] = "float32"
    """The precision that must be in effect."""
    extension: Annotated[str, Meta(pattern=r"^(zentorch|ipex|zentf)?\Z")] = ""
    """An extension of the framework that must load: `zentorch`, `ipex` or `zentf`."""
    kernels: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_:]+\Z")], ...] = ()
    """Operators that must appear in the profiler's output."""
    compile: tuple[Annotated[str, Meta(pattern=r"^(inductor|zentorch)\Z")], ...] = ()
    """Backends of `torch.compile` to check and to time."""


class Expected(Expects, frozen=True):
    """The results that verification must observe in one environment.

    `version` is empty if any version is accepted.
    """

    framework: types.Framework = frameworks.DEFAULT


class Tools(_Strict, frozen=True):
    """Build tools whose versions affect the result and whose files are therefore also locked."""

    uv: types.FileVersion
    """The version of uv to install the wheels with."""


class Conda(_Strict, frozen=True):
    """A conda environment's channels, and the packages that it contains in addition to Python."""

    channels: tuple[types.Source, ...] = ("conda-forge",)
    """Symbolic names of the channels, highest priority first."""
    packages: tuple[types.CondaSpec, ...] = ()
    """Packages to install in addition to Python, such as compilers and system libraries. The
    framework comes from the profile's locked wheels, in a virtual environment on top of conda's
    Python."""
    virtual_packages: dict[types.Platform, dict[types.VirtualPackage, types.VirtualVersion]] = {}
    """The virtual packages given to the solver for each platform. The virtual packages of the
    machine that runs `lock` are never used."""


class Source(_Strict, frozen=True, omit_defaults=True):
    """A source specified by the project for a package that does not come from an index."""

    name: types.Distribution
    location: types.SourceLocation
    """Either `git+https://HOST/PATH@REF#subdirectory=DIR`, the URL of an archive, or a folder of
    the project as `./DIR`."""
    marker: types.Marker = ""
    """An environment marker that limits the targets to which the source applies. Empty for all
    targets."""
    where: types.Comment = ""
    """The place in the project's files that names the source. It is used only in messages."""
    digest: types.Sha256 | Literal[""] = ""
    """The digest of a folder's current files, for comparison with the lock. Empty if unknown."""

    def serves(self, platform: types.Platform, python: types.PythonVersion) -> bool:
        """Return whether this source applies to a platform and Python version."""
        if not self.marker:
            return True
        from packaging.markers import Marker

        return requirements.applies(Marker(self.marker), platform, python)


class Resolution(_Strict, frozen=True, omit_defaults=True):
    """A project's rules for choosing packages and their dependencies."""

    as_of: types.Date | None = None
    """The last day of releases to consider. Later releases are ignored."""
    build: bool | tuple[types.Distribution, ...] = False
    """The packages that may be built from source. `true` allows all packages, and `false` none."""
    cuda_architectures: tuple[types.CudaArchitecture, ...] = ()
    """The GPUs for which to compile the packages' CUDA code, if they differ from the GPUs that
    PyTorch's build supports."""
    sources: tuple[Source, ...] = ()
    """Sources of the packages that do not come from an index."""
    overrides: tuple[types.Requirement, ...] = ()
    """Requirements that replace all other requirements for the same package."""
    exclude: tuple[types.Distribution, ...] = ()
    """Packages to leave out."""

    def source_of(
        self, name: str, platform: types.Platform, python: types.PythonVersion
    ) -> Source | None:
        """Return the source of a package for a target, or None if it comes from an index.

        The target is given by its platform and Python version.
        """
        for source in self.sources:
            if source.name == name and source.serves(platform, python):
                return source
        return None


class Profile(_Strict, frozen=True):
    """A complete profile, after `extends` has been applied."""

    name: types.Name
    """The profile's name, which is its file name without `.yaml`. The key is optional."""
    description: types.Comment
    """What the profile is for."""
    accelerator: types.Accelerator
    """The kind of device. `envbuilder profiles` lists all kinds."""
    python: Python
    platforms: tuple[types.Platform, ...]
    """The platforms for which the profile is locked."""
    backends: tuple[types.Backend, ...]
    """The backends that can build the profile."""
    tools: Tools
    requirements: tuple[types.Requirement, ...]
    """The packages to install, including the framework. They replace the requirements of the
    extended profile."""
    expects: Expects
    framework: types.Framework = frameworks.DEFAULT
    """The framework that the profile installs. The default is `torch`."""
    builds: tuple[types.BuildName, ...] = ()
    """The builds of the framework that this hardware can use, best first, such as "cu126". If any
    are listed, the project chooses the release. Otherwise, `requirements` must pin a release."""
    release: types.FrameworkVersion | None = None
    """The framework release for projects that do not request another one."""
    extends: types.Name | None = None
    """The profile that this one extends."""
    constraints: tuple[types.Requirement, ...] = ()
    """Version limits on packages. They apply only if something else requires the package."""
    base: dict[types.PythonVersion, Base] = {}
    """The base image for each Python version."""
    debian_base: dict[types.PythonVersion, DebianBase] = {}
    """The base for each Python version, built from packages of `debian_suite`. It takes precedence
    over `base`."""
    debian_suite: types.DebianSuite = ""
    """The Debian suite of the base, which is also used to resolve `system_packages`."""
    system_packages: tuple[types.DebianPackage, ...] = ()
    """Debian packages to install in images. Their dependencies are locked as well."""
    unpack_packages: bool = False
    """Whether it is sufficient to unpack `system_packages` and their dependencies, because they
    consist only of files. Adding them to an image then requires neither dpkg nor a container
    engine."""
    bytecode: bool = True
    """Whether images contain compiled bytecode, which cannot be generated on a machine of another
    platform."""
    indexes: dict[types.Distribution, types.Source] = {}
    """The symbolic name of the index for each listed distribution. All other distributions come
    from the user's own index."""
    environment: dict[types.Variable, types.VariableValue] = {}
    """Variables to set in the environment."""
    preload: tuple[types.Library, ...] = ()
    """Libraries from `system_packages` to preload with LD_PRELOAD."""
    run: Run = Run()
    requires: Requires = Requires()
    warnings: tuple[types.Comment | Fault, ...] = ()
    """Notes to print whenever the profile is used, and faults to print only where they occur."""
    conda: Conda = Conda()
    resolution: Resolution = Resolution()
    """The rules that a project sets for choosing packages. Empty in a profile's own file."""
    opt_in: bool = False
    """Whether the profile is used only on request and never chosen automatically."""

    @property
    def image_pythons(self) -> frozenset[str]:
        """The Python versions that have a base, so that an image can be built for them."""
        return frozenset(self.base) | frozenset(self.debian_base)

    @property
    def makes_images(self) -> bool:
        """Whether any of the profile's backends makes images."""
        return any(map(backends.makes_image, self.backends))

    @property
    def image_python(self) -> types.PythonVersion:
        """The Python version that images of the profile use by default.

        If there is a base for the profile's default version, that version is used. Otherwise, the
        newest supported version with a base is used.
        """
        if self.python.default in self.image_pythons:
            return self.python.default
        have = [v for v in self.python.supported if v in self.image_pythons]
        return max(have, key=lambda v: int(v.partition(".")[2]), default=self.python.default)

    def choices(self, release: str = "") -> dict[str, releases.Chosen]:
        """Return the framework releases for which the profile's builds exist, newest first.

        If `release` is given, return only that release.
        """
        return releases.choices(self.framework, self.builds, self.platforms, release)

    def build_on(self, platform: types.Platform | None) -> releases.Build | None:
        """Return the build of the profile's release for a platform; None if no table lists it."""
        chosen = self.choices(self.release or "").get(self.release or "")
        for build in chosen.builds if chosen else ():
            if build.platform == platform:
                return build
        return None

    def expected(self, python: types.PythonVersion | None) -> Expected:
        """Return the results that verification must observe with one Python version.

        If `python` is None, any framework version is accepted.
        """
        version = self.expects.versions.get(python, self.expects.version) if python else ""
        values = msgspec.structs.asdict(self.expects) | {"version": version, "versions": {}}
        return Expected(**values, framework=self.framework)

    def notes(self, cpu_flags: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the profile's warnings that apply to its release.

        Faults that occur only with CPU flags missing from `cpu_flags` are left out. If `cpu_flags`
        is None, all faults of the release are included.
        """
        notes = list[str]()
        for warning in self.warnings:
            if isinstance(warning, str):
                notes.append(warning)
            elif warning.release == self.release and (
                cpu_flags is None or set(cpu_flags).issuperset(warning.cpu_flags)
            ):
                notes.append(warning.text)
        return tuple(notes)


_HINTS: Hints = {
    Profile: requirements.HINTS,
    Expects: {"torch": "Did you mean 'version'? It is the version of the profile's framework."},
}


def search_path(project: Path | None, user: Path) -> tuple[Path, ...]:
    """Return the profile folders to search: the project's, the user's, and the shipped one."""
    folders = filter(None, (project, user))
    return (*(folder / "profiles" for folder in folders), resources.profiles_dir())


def names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of all usable profiles in these folders, sorted."""
    stems: set[str] = set()
    for folder in folders:
        stems.update(path.stem for path in folder.glob("*.yaml") if _is_profile(path))
    stems.discard("indexes")
    return tuple(sorted(n for n in stems if types.is_name(n) and not n.startswith("_")))


def _is_profile(path: Path) -> bool:
    """Return whether a YAML file is a profile, judging by its keys.

    A file is a profile if it has any of a profile's keys other than `name` and `description`,
    because a repository's own `profiles` folder may contain unrelated YAML files. All shipped files
    are treated as profiles. So is an unreadable file, so that loading it raises an error.
    """
    if path.parent == resources.profiles_dir():
        return True
    keys = {*Profile.__struct_fields__} - {"name", "description"}
    try:
        written = read_text(path)
    except InvalidError:
        return True
    before = "^"
    if written.lstrip().startswith("{"):
        before = r"[{,]\s*"
    return bool(re.search(rf"{before}['\"]?({'|'.join(keys)})['\"]?\s*:", written, re.MULTILINE))


def suggestion(name: str, available: Sequence[str]) -> str:
    """Return a hint for an unknown profile that lists all known names.

    If one of the names is similar, the hint suggests this name first.
    """
    from difflib import get_close_matches

    plain = name[:SHOWN].lower().replace("_", "-").replace(" ", "-")
    meant = get_close_matches(plain, available, n=1)
    for row in ACCELERATORS.values():
        if row.name in available and re.fullmatch("|".join(row.aliases), plain):
            meant = [row.name]
    first = f"Did you mean '{meant[0]}'? " if meant else ""
    if plain == "gpu":
        first = f"GPUs: {', '.join(f'{row.name} ({row.brand})' for row in of_gpus())}. "
    return f"{first}Known profiles: {', '.join(available)}. See `envbuilder profiles`."


def load(name: str, folders: Sequence[Path]) -> Profile:
    """Load a profile by name.

    Raise `InvalidError` if the profile is unknown or invalid. The error names the file and the key,
    and makes a suggestion.
    """
    data, where, text = _merged(name, folders, ())
    profile = decode(data, Profile, where, text, _HINTS)
    _check(profile, where)
    return _at_release(profile, where)


def _at_release(profile: Profile, where: str) -> Profile:
    """Return a profile pinned to its default release, unless its requirements already pin one.

    In both cases, verification will expect the pinned version, unless the profile itself specifies
    the version to expect. Raise `InvalidError` if no table lists the release for any of the
    profile's builds.
    """
    framework = frameworks.FRAMEWORKS[profile.framework]
    pinned_to = ""
    for line in profile.requirements:
        pinned_to = pinned_to or requirements.pin(line, framework.names)
    if pinned_to or not profile.builds:
        version = profile.expects.version or pinned_to
        return replace(profile, expects=replace(profile.expects, version=version))
    release = profile.release or ""
    chosen = profile.choices(release)
    if release not in chosen or releases.unknown(profile.framework, release):
        raise InvalidError(
            f"{where}: release: unknown release {release or '(none)'} of {framework.title} for"
            f" the build {' or '.join(profile.builds)}",
            "Name another release, or pin the package under requirements: and remove builds.",
        )
    return pinned(profile, chosen[release])


def pinned(profile: Profile, chosen: releases.Chosen) -> Profile:
    """Return a copy of a profile that pins the framework to the builds of the chosen release."""
    framework = frameworks.FRAMEWORKS[profile.framework]
    builds = chosen.builds
    before = releases.rules(profile.framework, profile.release)
    rules = releases.rules(profile.framework, chosen.release)
    pins: list[str] = []
    for line in profile.requirements:
        if requirements.distribution(line) in framework.names:
            pins += requirements.of_builds(line, profile.framework, builds)
        elif line not in before:
            pins.append(line)
    # What setuptools once had (pkg_resources) is imported, and not required.
    needed = tuple(rule for rule in rules if rule.startswith("setuptools"))
    constraints = [c for c in profile.constraints if c not in before]
    # The compiler of kernels had another name before 2.10; CUDA's is on PyPI.
    prefix = "triton-"
    if tuple(map(int, chosen.release.split(".")[:2])) < (2, 10):
        prefix = "pytorch-triton-"
    compilers = framework.kernel_compilers.get(profile.accelerator, frozenset())
    owned = framework.names | {name for name in compilers if name.startswith(prefix)}
    # An index of the user's own stays.
    replaced = framework.names | compilers
    indexes: dict[str, str] = {}
    for build in builds:
        if build.index != "default":
            indexes |= dict.fromkeys(sorted(owned), build.index)
    for name, index in profile.indexes.items():
        if name not in replaced or not index.startswith(_SHIPPED):
            indexes[name] = index
    reported = {_reported(profile.framework, build) for build in builds}
    # Where it differs among platforms, the release alone.
    version = chosen.release
    if len(reported) == 1:
        version = reported.pop()
    return replace(
        profile,
        release=chosen.release,
        requirements=(*dict.fromkeys(pins), *needed),
        constraints=(*constraints, *(rule for rule in rules if rule not in needed)),
        indexes=indexes,
        platforms=tuple(build.platform for build in builds),
        conda=replace(profile.conda, virtual_packages=_virtual(profile.conda, builds[0].build)),
        expects=replace(profile.expects, version=version, versions={}),
    )


def _reported(framework: types.Framework, build: releases.Build) -> str:
    """Return the version that the framework reports for a build, such as "2.7.1+cu126"."""
    if framework == "torch" and (build.index != "default" or re.match(r"cu\d", build.build)):
        return f"{build.release}+{build.build}"
    return build.release


def _virtual(conda: Conda, build: str) -> dict[types.Platform, dict[str, str]]:
    """Return conda's virtual packages for each platform.

    If `__cuda` is listed for a platform, its version is set to the CUDA version of the build.
    """
    cuda = re.fullmatch(r"cu(?:da)?(\d\d)(\d?)", build)
    virtual = {platform: {**packages} for platform, packages in conda.virtual_packages.items()}
    for packages in virtual.values():
        if cuda and "__cuda" in packages:
            packages["__cuda"] = f"{cuda[1]}.{cuda[2] or 0}"
    return virtual


def is_on_pypi(profile: Profile, platform: types.Platform) -> bool:
    """Return whether PyPI has a build of the profile's framework release for a platform."""
    release = profile.release or ""
    chosen = releases.choices(profile.framework, profile.builds, (platform,), release)
    if release in chosen:
        return any(b.index == "default" for b in chosen[release].builds)
    return False


def _merged(
    name: str, folders: Sequence[Path], trail: tuple[str, ...]
) -> tuple[dict[str, Any], str, str]:
    if name in trail:
        raise InvalidError(f"profile '{trail[0]}': extends forms a cycle: {' → '.join(trail)}")
    path = _find(name, folders)
    text = read_text(path)
    data = parse_shipped(text, path)
    inside = data.get("name", name)
    if inside != name:
        raise InvalidError(f"{path}: name: is {shown(str(inside))}, but the file is named '{name}'")
    data["name"] = name
    parent = data.get("extends")
    if parent is None:
        return requirements.combined(name, data, {}, str(path), text), str(path), text
    if not isinstance(parent, str):
        raise InvalidError(f"{path}: extends: expected the name of one profile")
    # Not inherited: these keys apply to one profile only, not to its variants.
    inherited, _, _ = _merged(parent, folders, (*trail, name))
    for key in ("extends", "description", "warnings", "opt_in"):
        inherited.pop(key, None)
    _drop_unsupported(inherited, data)
    # A pin of its own is meant: no project chooses another one.
    expects = data.get("expects")
    if "builds" not in data and (
        "requirements" in data or (isinstance(expects, dict) and "version" in expects)
    ):
        for key in ("builds", "release"):
            inherited.pop(key, None)
    data = requirements.combined(name, data, inherited, str(path), text)
    return _merge(inherited, data), str(path), text


def _drop_unsupported(inherited: dict[str, Any], data: dict[str, Any]) -> None:
    """Remove the inherited base images for Python versions that `data` no longer supports."""
    python = data.get("python")
    supported = python.get("supported") if isinstance(python, dict) else None
    if not isinstance(supported, list):  # unchanged, or not valid, which decoding reports
        return
    for key in ("base", "debian_base"):
        bases = inherited.get(key)
        if isinstance(bases, dict):
            inherited[key] = {v: base for v, base in bases.items() if v in supported}


def chain(name: str, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the file of a valid profile, followed by the files of the profiles it extends."""
    path = _find(name, folders)
    parent = parse_shipped(read_text(path), path).get("extends")
    return (path, *(chain(parent, folders) if parent else ()))


def _find(name: str, folders: Sequence[Path]) -> Path:
    # An invalid name, such as `../x`, must not reach the file system.
    paths = [folder / f"{name}.yaml" for folder in folders] if types.is_name(name) else []
    present = [path for path in paths if path.is_file()]
    # One that is no profile is loaded, and refused with its line, only if no other has the name.
    for path in (*filter(_is_profile, present), *present):
        return path
    raise InvalidError(f"unknown profile {shown(name)}", suggestion(name, names(folders)))


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _merge(old, value)
        else:
            result[key] = value
    return result


def _check(profile: Profile, where: str) -> None:
    """Raise `InvalidError` if a profile violates a rule that its types cannot express."""
    for key, name in (
        ("accelerator", profile.accelerator),
        ("expects.device", profile.expects.device),
    ):
        if name not in ACCELERATORS:
            raise InvalidError(f"{where}: {key}: {name!r} is not one of {', '.join(ACCELERATORS)}")
    if profile.python.default not in profile.python.supported:
        raise InvalidError(f"{where}: python.default: must be one of python.supported")
    if profile.makes_images and not profile.image_pythons:
        raise InvalidError(f"{where}: base: the docker backend needs a base image")
    for key, bases in (("base", profile.base), ("debian_base", profile.debian_base)):
        stray = sorted(set(bases) - set(profile.python.supported))
        if stray:
            raise InvalidError(f"{where}: {key}.{stray[0]}: not in python.supported")
    for key in ("system_packages", "debian_base"):
        if getattr(profile, key) and not profile.debian_suite:
            raise InvalidError(f"{where}: debian_suite: required because {key} is set")
    if profile.preload and not profile.system_packages:
        raise InvalidError(
            f"{where}: preload: there are no system_packages that could contain the library"
        )


def variant_of(name: str) -> str | None:
    """Return the accelerator whose default profile this profile is a variant of.

    A variant supports different GPUs than the accelerator's default profile. Return None if the
    profile is not a variant.
    """
    for row in of_gpus():
        if name in row.variants:
            return row.name
    return None


def require_backend(profile: Profile, backend: str) -> None:
    """Raise `InvalidError` if the profile does not support the backend."""
    if backend not in profile.backends:
        raise InvalidError(
            f"profile '{profile.name}' has no {backend} backend",
            f"It has: {', '.join(profile.backends)}.",
        )


def canonical(profile: Profile) -> dict[str, Any]:
    """Return a profile as plain data with sorted keys.

    The data is used for hashing and for `profiles NAME --json`.
    """
    data: dict[str, Any] = msgspec.to_builtins(profile, order="sorted")
    return data
