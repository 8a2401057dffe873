"""`envbuilder ci`: write a CI workflow that builds and verifies environments.

From top to bottom, the module defines the locked profiles, the matrix (one row per job), the
workflow file for a CI service, and the command. The module is long because each job is generated
from a row, so that jobs and rows only make sense together.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

import click
import msgspec
from msgspec import Struct

from envbuilder import __version__
from envbuilder.builds.render import RenderedFile
from envbuilder.bundle import self_wheel
from envbuilder.commands.options import load_settings, several
from envbuilder.commands.render import write
from envbuilder.core import console, decoding, resources, types
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.core.resources import MARK, filled
from envbuilder.core.text import gigabytes
from envbuilder.locks.entries import Entry, entries
from envbuilder.packages.conda import lock as conda_locks
from envbuilder.packages.conda.lock import Lock as CondaLock
from envbuilder.packages.store import unpacked
from envbuilder.profiles import lock as locks
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import Profile, search_path, suggestion

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings


def locked_profiles(
    settings: Settings, names: Sequence[str], repository: Path
) -> tuple[list[LockedProfile], list[Omission]]:
    """Return the profiles with their locks, and an omission for each profile without a usable lock.

    If `names` is empty, return all profiles that are not opt-in, and those that the project lists.
    If a profile that is in `names` or that the project lists has no usable lock, raise
    `InvalidError` instead of returning an omission.
    """
    library = Library(search_path(settings.project, settings.config_dir))
    locked: list[LockedProfile] = []
    omissions: list[Omission] = []
    for name in names or (None,):
        for entry in entries(settings, name):
            if isinstance(entry.profile, Profile) and entry.profile.opt_in and not entry.required:
                continue
            try:
                locked.append(_locked(entry, library, repository))
            except InvalidError as error:
                if entry.required:
                    raise
                omissions.append(Omission(label=entry.label, why=error.message))
    return locked, omissions


def _locked(entry: Entry, library: Library, repository: Path) -> LockedProfile:
    """Return an entry's profile with its locks. Raise `InvalidError` if there is no usable lock."""
    if isinstance(entry.profile, InvalidError):
        raise entry.profile
    lock = locks.load(entry.earlier) if entry.earlier else None
    usable = locks.require_usable(entry.profile, lock, of_project=bool(entry.environment))
    path = conda_locks.path_for(entry.name, library)
    if entry.environment:
        beside = conda_locks.beside(entry.path)
        path = beside if beside.is_file() else None
    of_conda = conda_locks.load(path) if path else None
    if path or entry.profile.backends == ("conda",):
        of_conda = conda_locks.require_usable(entry.profile, of_conda)
    return LockedProfile(
        environment=entry.environment,
        profile=entry.profile,
        lock=usable,
        path=_inside(entry.earlier, repository),
        conda_lock=of_conda,
        conda_path=_inside(path, repository),
    )


def _inside(path: Path | None, repository: Path) -> str:
    """Return `path` relative to the repository, or "" if it is None or not in the repository."""
    root = repository.resolve()
    if path is None or not path.resolve().is_relative_to(root):
        return ""
    return path.resolve().relative_to(root).as_posix()


BACKENDS: tuple[types.Backend, ...] = ("venv", "docker", "conda")
"""Backends that a row may use, the default one first. conda requires a conda lock of the user's
own."""
TESTS = "pytest"
"""The package that jobs use to run a project's own tests."""
_DIGITS = 16
"""Number of digits of a lock's digest to include in a cache key."""


class LockedProfile(Struct, frozen=True, kw_only=True):
    """A profile, or a project's environment on a profile, together with its usable lock."""

    environment: str
    """Name of the project's environment; empty if this is a profile outside of a project."""
    profile: Profile
    lock: locks.Lock
    path: str
    """Path of the lock in the repository; empty if the lock is shipped with envbuilder."""
    conda_lock: CondaLock | None = None
    """The profile's conda lock, if it has one."""
    conda_path: str = ""
    """Path of the conda lock in the repository; empty if the conda lock is elsewhere."""

    @property
    def backends(self) -> tuple[types.Backend, ...]:
        """The backends for which the profile has a lock, the default one first."""
        return tuple(
            each
            for each in BACKENDS
            if each in self.profile.backends and (each != "conda" or self.conda_lock is not None)
        )


class Row(Struct, frozen=True, kw_only=True):
    """One job of the matrix: an environment on one platform, with one Python and one backend."""

    id: str
    """Unique name of the job, which can also be used in the names of files and artifacts."""
    what: Literal["verify", "build"]
    """The job's task. It is `build` if the runner lacks, or may lack, the accelerator."""
    environment: str
    profile: str
    framework: types.Framework
    accelerator: types.Accelerator
    platform: types.Platform
    python: types.PythonVersion
    backend: types.Backend
    runner: str
    """Label of the runner that runs the job."""
    cpu_flags: tuple[str, ...]
    """CPU flags that the runner's processor must have. Without them, `verify` exits with 3."""
    lock: str
    """Path of the lock in the repository; empty if the lock is shipped with envbuilder."""
    conda_lock: str = ""
    """Path of the conda lock in the repository; empty for backends other than conda."""
    cache_key: str
    """Key of the download cache, which changes when the required files change."""
    tests: bool = False
    """Whether the job runs the project's own tests with pytest. This requires pytest to be
    locked."""
    download_bytes: int = 0
    """Minimum number of bytes that the job downloads, not counting a base image."""
    disk_bytes: int
    """Minimum number of bytes that the downloads and the environment take up, not counting a base
    image."""


class Omission(Struct, frozen=True, kw_only=True):
    """A profile or job that has no row in the matrix, and the reason why it has none."""

    label: str
    why: str


class Selection(Struct, frozen=True, kw_only=True):
    """The platforms, Python versions and backends for which the user wants jobs.

    If `platforms` is empty, the user wants jobs for all platforms.
    """

    platforms: tuple[types.Platform, ...] = ()
    pythons: tuple[types.PythonVersion, ...] = ()
    """Python versions. If empty, each profile's default version is used."""
    backends: tuple[types.Backend, ...] = ()
    """Backends. If empty, each profile uses the first backend in `BACKENDS` for which it has a
    lock."""


def rows(
    profiles: Iterable[LockedProfile],
    selection: Selection,
    hosted: Mapping[types.Platform, str],
    accelerated: Mapping[str, str],
) -> tuple[list[Row], list[Omission]]:
    """Return the rows of all profiles, and an omission for each profile or job that has no row.

    `hosted` maps each platform to the label of a hosted runner, which has no accelerator.
    `accelerated` maps profiles or accelerators, optionally with a platform (see `_runner`), to the
    labels of runners that have an accelerator.
    """
    results: list[Row] = []
    omissions: list[Omission] = []
    for locked in profiles:
        label = _label(locked.environment, locked.profile.name)
        jobs = [*_jobs(locked, selection)]
        if not jobs:
            omissions.append(Omission(label=label, why=_why_none(locked, selection)))
        for platform, python, backend in jobs:
            row = _row(locked, platform, python, backend, hosted, accelerated)
            if row.runner:
                results.append(row)
            else:
                omissions.append(
                    Omission(label=row.id, why=f"no hosted runner is {platform}, so {hint(row)}")
                )
    return results, omissions


def hint(row: Row) -> str:
    """Return advice on how to run a job on one of the user's own runners."""
    return f"name your own runner: --runner {row.profile}@{row.platform}=LABEL"


def _label(environment: str, profile: str) -> str:
    return ".".join(filter(None, (environment, profile)))


def _why_none(locked: LockedProfile, selection: Selection) -> str:
    possible = {*locked.profile.backends} & {*(selection.backends or BACKENDS)}
    if possible == {"conda"} and locked.conda_lock is None:
        return "its conda packages are not locked: run `envbuilder lock --backend conda`"
    if not possible:
        return f"its only backends are {', '.join(locked.profile.backends)}"
    return "its lock covers none of these platforms, Pythons and backends"


def _jobs(
    locked: LockedProfile, selection: Selection
) -> Iterator[tuple[types.Platform, types.PythonVersion, types.Backend]]:
    profile = locked.profile
    backends = [backend for backend in locked.backends if backend in selection.backends]
    if not selection.backends:
        backends = [*locked.backends[:1]]
    for platform in selection.platforms or types.PLATFORMS:
        for backend in backends:
            possible = _pythons(locked, platform, backend)
            default = _default_python(profile, backend)
            preferred = (default,) if default in possible else possible[:1]
            for python in selection.pythons or preferred:
                if python in possible:
                    yield platform, python, backend


def _default_python(profile: Profile, backend: types.Backend) -> types.PythonVersion:
    return profile.image_python if makes_image(backend) else profile.python.default


def _pythons(
    locked: LockedProfile, platform: types.Platform, backend: types.Backend
) -> tuple[types.PythonVersion, ...]:
    """Return the Python versions for which the locks have targets on a platform.

    If the backend builds images, return only the versions for which there is a base image.
    """
    image = makes_image(backend)
    if image and types.system(platform) != "linux":
        return ()
    of_conda = locked.conda_lock.targets if backend == "conda" and locked.conda_lock else ()
    locked_by_conda = {(target.platform, target.python) for target in of_conda}
    pythons: list[types.PythonVersion] = []
    for target in locked.lock.targets:
        if target.platform != platform or (image and target.base is None):
            continue
        if backend != "conda" or (platform, target.python) in locked_by_conda:
            pythons.append(target.python)
    return tuple(pythons)


def _row(
    locked: LockedProfile,
    platform: types.Platform,
    python: types.PythonVersion,
    backend: types.Backend,
    hosted: Mapping[types.Platform, str],
    accelerated: Mapping[str, str],
) -> Row:
    profile = locked.profile
    label = _label(locked.environment, profile.name)
    name = f"{label}-{platform.replace('/', '-')}-py{python}-{backend}"
    runner = _runner(profile, platform, accelerated)
    proves = profile.accelerator == "cpu" or runner is not None
    files = tuple(_files(locked, platform, python, backend))
    cache_key = f"{name}-{locks.lock_digest(locked.lock)[:_DIGITS]}"
    conda_path = ""
    if backend == "conda" and locked.conda_lock is not None:
        cache_key += f"-{locks.lock_digest(locked.conda_lock)[:_DIGITS]}"
        conda_path = locked.conda_path
    x86 = types.machine(platform) == "x86_64"
    download = sum(file.room for file in files)
    return Row(
        id=name,
        what="verify" if proves else "build",
        environment=locked.environment,
        profile=profile.name,
        framework=profile.framework,
        accelerator=profile.accelerator,
        platform=platform,
        python=python,
        backend=backend,
        runner=runner or hosted.get(platform, ""),
        cpu_flags=profile.requires.cpu_flags if x86 else (),
        lock=locked.path,
        conda_lock=conda_path,
        cache_key=cache_key,
        # `run` takes the default Python, and no other.
        tests=proves
        and python == _default_python(profile, backend)
        and any(file.name == TESTS for file in files),
        download_bytes=download,
        disk_bytes=download + unpacked(files),
    )


def _files(
    locked: LockedProfile,
    platform: types.Platform,
    python: types.PythonVersion,
    backend: types.Backend,
) -> Iterator[locks.File]:
    """Yield the files that a job downloads, except base images and individual libraries."""
    target = locks.select(locked.lock, platform, python)
    yield locked.lock.tool(platform)
    for file in target.files:
        if file.kind != "deb" or makes_image(backend):
            yield file
    if backend == "conda" and locked.conda_lock is not None:
        for package in conda_locks.select(locked.conda_lock, platform, python).packages:
            yield package.as_file


def _runner(
    profile: Profile, platform: types.Platform, accelerated: Mapping[str, str]
) -> str | None:
    """Return the label of a runner that has the profile's accelerator, or None if there is none.

    The keys of `accelerated` are profiles or accelerators (`cuda`), optionally with a platform
    (`cuda@linux/arm64`). A key without a platform applies only to the profile's first platform,
    because no machine has two platforms.
    """
    for name in (profile.name, profile.accelerator):
        label = accelerated.get(f"{name}@{platform}")
        if label is None and platform == profile.platforms[0]:
            label = accelerated.get(name)
        if label is not None:
            return label
    return None


Provider = Literal["github", "gitlab"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)


class Service(Struct, frozen=True, kw_only=True):
    """A CI service's free hosted runners, none of which has an accelerator."""

    runners: Mapping[types.Platform, str]
    """Platform → label of the hosted runner for that platform."""
    disk_bytes: int
    """Disk space in bytes that every hosted runner has."""
    has_engine: bool
    """Whether jobs on hosted runners can use a container engine without additional services."""


SERVICES: Mapping[Provider, Service] = MappingProxyType(
    {
        "github": Service(
            runners={
                "linux/amd64": "ubuntu-24.04",
                "linux/arm64": "ubuntu-24.04-arm",
                "macos/arm64": "macos-15",
            },
            disk_bytes=14 * 10**9,
            has_engine=True,
        ),
        "gitlab": Service(
            runners={
                "linux/amd64": "saas-linux-small-amd64",
                "linux/arm64": "saas-linux-small-arm64",
            },
            disk_bytes=30 * 10**9,
            has_engine=False,
        ),
    }
)


_NOT_IN_EVERY_RUNNER = ("avx512", "amx")
"""Prefixes of the CPU flags that only some hosted runners have."""


OLDEST_PYTHON = "3.11"
"""Oldest version of Python that can run envbuilder itself. A job for an older version builds its
environment with the interpreter from the lock."""


class Workflow(Struct, frozen=True, kw_only=True):
    """The data from which a workflow file is generated."""

    provider: Provider
    rows: tuple[Row, ...]
    omissions: tuple[Omission, ...]
    arguments: tuple[str, ...]
    """The command that writes this workflow, as a list of arguments."""
    output: str
    """Path of the workflow file in the repository. Empty if the workflow is printed. A printed
    workflow cannot check whether it is up to date."""
    project: bool
    """Whether the repository contains a project with environments."""
    from_checkout: bool
    """Whether the repository is envbuilder's own, so that jobs install envbuilder from the
    checkout."""
    requirements: str
    """Path in the repository of the requirements file from which jobs install envbuilder."""
    quick: bool
    """Whether jobs verify with the small subset of MNIST."""


def fitting(rows: Iterable[Row], service: Service) -> tuple[list[Row], list[Omission]]:
    """Return the rows that the service can run, and an omission for each row that it cannot run."""
    jobs: list[Row] = []
    omissions: list[Omission] = []
    for row in rows:
        if why := _why_not(row, service):
            omissions.append(Omission(label=row.id, why=why))
        else:
            jobs.append(row)
    return jobs, omissions


def require_jobs(workflow: Workflow) -> None:
    """Raise `InvalidError` if the workflow has no jobs, or if a lock is outside the repository.

    If a lock is outside the repository, a job could build something other than what was checked in
    the repository.
    """
    outside: set[str] = set()
    for row in workflow.rows:
        if not row.lock or (row.backend == "conda" and not row.conda_lock):
            outside.add(row.profile)
    if outside:
        raise InvalidError(
            f"the locks of {', '.join(sorted(outside))} are not in this repository",
            Hint(
                "Run this in the root of a project that has its own locks. To start one", ("init",)
            ),
        )
    if not workflow.rows:
        reasons = "; ".join(f"{each.label}: {each.why}" for each in workflow.omissions)
        raise InvalidError(
            f"the workflow would have no jobs: {reasons or 'there is no profile'}",
            Hint("To list the profiles", ("profiles",)),
        )


def _why_not(row: Row, service: Service) -> str:
    """Return why no hosted runner can run a job.

    Return "" if a hosted runner can run the job, or if the job has a runner of the user's own.
    """
    if row.runner not in service.runners.values():
        return ""
    if makes_image(row.backend) and not service.has_engine:
        return f"its image needs a container engine, which hosted runners lack, so {hint(row)}"
    if row.disk_bytes > service.disk_bytes:
        return (
            f"it needs {gigabytes(row.disk_bytes)} of disk, but hosted runners only guarantee"
            f" {gigabytes(service.disk_bytes)}, so {hint(row)}"
        )
    return ""


def workflow_files(workflow: Workflow) -> dict[str, str]:
    """Return the files that make up a workflow, as a mapping from paths to contents.

    On GitHub, jobs that only build are in a separate file, because changes to specific files can
    trigger an entire workflow, but not a single job.
    """
    if workflow.provider == "gitlab":
        return {workflow.output: _text(workflow, workflow.rows)}
    jobs: dict[str, list[Row]] = {"verify": [], "build": []}
    for row in workflow.rows:
        jobs[row.what].append(row)
    texts = {workflow.output: _text(workflow, jobs["verify"])}
    if jobs["build"]:
        builds = _beside(workflow.output, "-builds.yml")
        texts[builds] = _text(workflow, jobs["build"], builds)
    return texts


def _beside(output: str, ending: str) -> str:
    """Return the path of a file in the same folder as the workflow file.

    The file's name is the name of the workflow file, with the suffix replaced by `ending`.
    """
    path = Path(output or "envbuilder.yml")
    return str(path.with_name(path.stem + ending))


def _text(workflow: Workflow, rows: Sequence[Row], builds: str = "") -> str:
    """Return the text of a workflow file that contains the given jobs.

    `builds` is the path of the workflow file if all of its jobs only build an environment,
    otherwise an empty string.
    """
    command = shlex.join(workflow.arguments)
    service = SERVICES[workflow.provider]
    names = () if workflow.project else dict.fromkeys(row.profile for row in workflow.rows)
    checks = [shlex.join(("envbuilder", "check", *names))]
    checks += [f"{command} --check"] if workflow.output else []
    older_pythons: list[str] = []
    demanding: list[str] = []
    for row in rows:
        if int(row.python.partition(".")[2]) < int(OLDEST_PYTHON.partition(".")[2]):
            older_pythons.append(row.id)
        # A hosted runner may lack what these profiles need.
        is_hosted = row.runner in service.runners.values()
        if is_hosted and any(flag.startswith(_NOT_IN_EVERY_RUNNER) for flag in row.cpu_flags):
            demanding.append(row.id)
    return filled(
        f"ci/{workflow.provider}.yml.j2",
        {
            "mark": MARK,
            "command": command,
            "checks": checks,
            "rows": rows,
            "builds": builds,
            "workflow": workflow,
            "requirements": shlex.quote(workflow.requirements),
            "hosted": service.runners["linux/amd64"],
            "older_pythons": older_pythons,
            "demanding": demanding,
            "uncached": uncached(rows),
            "own_runners": {row.runner for row in rows} - {*service.runners.values()},
        },
    )


_MOST_CACHED = 5 * 10**9
"""Maximum number of bytes that all jobs together cache. It is half of GitHub's limit per
repository, because the caches for earlier locks remain until GitHub's limit is reached."""


def uncached(rows: Iterable[Row]) -> list[str]:
    """Return the ids of the jobs whose downloads do not fit into the space for GitHub's caches.

    The space is allocated to the jobs in the order of `rows`.
    """
    left = _MOST_CACHED
    without: list[str] = []
    for row in rows:
        size = row.download_bytes
        if makes_image(row.backend):
            size *= 2  # its layers are cached, too
        if size > left:
            without.append(row.id)
        else:
            left -= size
    return without


_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Pattern for valid runner labels. Workflows contain the labels unquoted."""


def _python_versions(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[types.PythonVersion, ...]:
    """Return the given Python versions. Raise `BadParameter` if one is malformed."""
    try:
        return decoding.convert(values, tuple[types.PythonVersion, ...])
    except msgspec.ValidationError as error:
        raise click.BadParameter(
            f"{' '.join(values)!r} is not a Python version such as 3.12", param=param
        ) from error


def _runners(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse `--runner` options into a mapping from NAME or NAME@PLATFORM to the runner's label."""
    runners = {}
    for value in values:
        key, _, label = value.partition("=")
        name, at, platform = key.partition("@")
        if not (
            types.is_name(name)
            and (not at or platform in types.PLATFORMS)
            and _LABEL.fullmatch(label)
        ):
            raise click.BadParameter(
                f"{value!r} does not have the form cuda=LABEL or cuda@linux/arm64=LABEL",
                param=param,
            )
        runners[key] = label
    return runners


def planned(
    names: tuple[str, ...],
    selection: Selection,
    runners: Mapping[str, str],
    provider: Provider,
) -> tuple[list[Row], list[Omission]]:
    """Return the rows for the project in the current folder, and the omissions with reasons."""
    locked, unlocked = locked_profiles(load_settings(), names, Path.cwd())
    _require_known(runners, locked)
    service = SERVICES[provider]
    possible, omissions = rows(locked, selection, service.runners, runners)
    jobs, unfit = fitting(possible, service)
    return jobs, [*unlocked, *omissions, *unfit]


def _require_known(runners: Mapping[str, str], profiles: Sequence[LockedProfile]) -> None:
    """Raise `InvalidError` if a key of `runners` matches no selected profile.

    A key matches a profile if it is the profile's name or the name of the profile's accelerator. A
    platform in the key is ignored.
    """
    available: set[str] = set()
    for locked in profiles:
        available |= {locked.profile.name, locked.profile.accelerator}
    for key in runners:
        name = key.partition("@")[0]
        if name not in available:
            raise InvalidError(
                f"--runner {key}: no selected profile has the name or the accelerator {name}",
                suggestion(name, sorted(available)),
            )


_PATH = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._/-]*\.ya?ml")
_WHEEL = re.compile(
    rf"(?:[A-Za-z0-9._][A-Za-z0-9._-]*/)*envbuilder_ml-{re.escape(__version__)}-[a-z0-9-]+\.whl"
)


def _output(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the path of the workflow file, or "" if no path is given.

    Raise `BadParameter` if the path could be outside the current folder. The path must be relative,
    because the workflow contains the command that writes it.
    """
    if value is None:
        return ""
    if not _PATH.fullmatch(value) or ".." in value.split("/"):
        raise click.BadParameter(
            f"{value!r} is not the path of a YAML file in this folder", param=param
        )
    return value


def _wheel(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the path of envbuilder's wheel in the repository, or "" if no path is given.

    Raise `BadParameter` if the file is missing or is not a wheel of this version of envbuilder.
    """
    if value is None:
        return ""
    inside = _WHEEL.fullmatch(value) and ".." not in value.split("/")
    if not inside or not Path(value).is_file():
        raise click.BadParameter(
            f"{value!r} is not the path of a wheel of envbuilder {__version__} in this folder",
            param=param,
        )
    return value


@click.command("ci")
@click.option(
    "--provider",
    required=True,
    type=click.Choice(PROVIDERS),
    help="The CI service.",
)
@click.option(
    "--profile",
    metavar="NAME,…",
    callback=several,
    help="Profiles to include. Without it, all profiles that are not opt-in.",
)
@click.option(
    "--platform",
    multiple=True,
    type=click.Choice(types.PLATFORMS),
    help="Only this platform; may be repeated.",
)
@click.option(
    "--python-version",
    "python",
    metavar="X.Y",
    multiple=True,
    callback=_python_versions,
    help="Python to use instead of each profile's default; may be repeated.",
)
@click.option(
    "--backend",
    multiple=True,
    type=click.Choice(BACKENDS),
    help=(
        "Backend to use; may be repeated. conda needs locked conda packages.  [default: venv, if"
        " the profile has it]"
    ),
)
@click.option(
    "--runner",
    metavar="NAME[@PLATFORM]=LABEL",
    multiple=True,
    callback=_runners,
    help=(
        "Verify this accelerator or profile, such as cuda, on self-hosted runners with this"
        " label; may be repeated. Without a platform, each profile's first platform counts. GPU"
        " profiles without a runner are only built."
    ),
)
@click.option("--quick", is_flag=True, help="Verify with a small subset of MNIST.")
@click.option(
    "--wheel",
    metavar="FILE",
    callback=_wheel,
    help=(
        "Wheel of envbuilder that jobs install, relative to this folder. Without it, the package"
        " index must have this version."
    ),
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=_output,
    help="File to write, relative to this folder. Without it, the workflow is printed.",
)
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 2 if the file is not up to date."
)
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON; write nothing.")
def command(
    provider: Provider,
    profile: tuple[str, ...],
    platform: tuple[types.Platform, ...],
    python: tuple[types.PythonVersion, ...],
    backend: tuple[types.Backend, ...],
    runner: Mapping[str, str],
    quick: bool,
    wheel: str,
    output: str,
    check: bool,
    as_json: bool,
) -> None:
    """Write a workflow with one job for each profile, platform, Python and backend.

    In a project, there is one for each of its environments on each of its profiles.

    Run it in the root of the repository. Next to the workflow, a requirements file lists what jobs
    install envbuilder from, each file by its hash. The workflow first checks the locks and, with
    --output, that it is up to date itself. CPU profiles are verified at each push, and pytest runs
    if it is locked. GPU profiles are only built, when their locks change, unless --runner names a
    self-hosted runner with such a GPU. The last job puts all reports into one table. It fails if a
    profile became slower or less accurate than on the main branch, and no busy or different machine
    explains it.

    \b
    Examples:
      envbuilder ci --provider github -o .github/workflows/environments.yml
      envbuilder ci --provider github --profile cpu,zendnn --quick
      envbuilder ci --provider github --runner cuda=gpu
      envbuilder ci --provider github --wheel ci/envbuilder_ml-0.1.0-py3-none-any.whl
      envbuilder ci --provider gitlab -o .gitlab-ci.yml
      envbuilder ci --provider github -o .github/workflows/environments.yml --check
      envbuilder ci --provider github --json
    """
    if check and not output:
        raise click.UsageError("--check requires --output, which names the file to check")
    selection = Selection(platforms=platform, pythons=python, backends=backend)
    planned_rows, omissions = planned(profile, selection, runner, provider)
    if as_json:
        console.data({"schema": 1, "matrix": planned_rows, "left_out": omissions})
        return
    source = resources.source_dir()
    settings = load_settings()
    from_checkout = not wheel and source is not None and source == Path.cwd().resolve()
    options = [*_options(provider, profile, selection, runner)]
    options += ["--quick"] if quick else []
    options += ["--wheel", wheel] if wheel else []
    plan = Workflow(
        provider=provider,
        rows=tuple(planned_rows),
        omissions=tuple(omissions),
        arguments=("envbuilder", "ci", *options, *(("--output", output) if output else ())),
        output=output,
        project=settings.definition is not None,
        from_checkout=from_checkout,
        requirements=_beside(output, ".requirements.txt"),
        quick=quick,
    )
    require_jobs(plan)
    texts = workflow_files(plan)
    if check:
        again = shlex.join(plan.arguments)
        for path, text in texts.items():
            _require_current(path, text, again)
        if not from_checkout:
            _require_current(plan.requirements, _begin_of_own_line(wheel), again, whole=False)
        return
    rendered: list[RenderedFile] = []
    for path, text in texts.items():
        rendered.append(RenderedFile(name=Path(path).name, content=text.encode()))
    if not from_checkout:
        rendered.append(_requirements(plan, wheel, settings))
    if output:
        for written in write(tuple(rendered), Path(output).parent):
            console.result(str(written))
        _print_jobs(plan, texts)
        return
    console.document(texts[output])
    for file in rendered[1:]:
        console.message(f"note: --output also writes {file.name}")


def _print_jobs(workflow: Workflow, texts: Collection[str]) -> None:
    """Print the jobs.

    Also print a note if a separate file for build jobs exists but is no longer needed.
    """
    for line in summary(workflow):
        console.message(line)
    builds = _beside(workflow.output, "-builds.yml")
    if builds not in texts and Path(builds).is_file():
        console.message(f"note: {builds} is no longer needed: remove it")


def summary(workflow: Workflow) -> Iterator[str]:
    """Yield a line for each job with its task and sizes, and a line for each omission."""
    for row in workflow.rows:
        does = f"verify{' and pytest' if row.tests else ''} at each push"
        if row.what == "build":
            does = "build when its lock changes"
        yield (
            f"{row.id}: {does}, on {row.runner}; at least {gigabytes(row.download_bytes)} to"
            f" download, {gigabytes(row.disk_bytes)} of disk"
        )
    for omission in workflow.omissions:
        yield f"no job for {omission.label}: {omission.why}"


def _options(
    provider: Provider,
    names: tuple[str, ...],
    selection: Selection,
    runners: Mapping[str, str],
) -> Iterator[str]:
    """Yield the options with which `envbuilder ci` would select the same jobs again."""
    yield from ("--provider", provider)
    if names:
        yield from ("--profile", ",".join(names))
    for option, values in (
        ("--platform", selection.platforms),
        ("--python-version", selection.pythons),
        ("--backend", selection.backends),
        ("--runner", [f"{name}={label}" for name, label in runners.items()]),
    ):
        for value in values:
            yield from (option, value)


def _begin_of_own_line(wheel: str) -> str:
    """Return the beginning of the line in the requirements file that installs envbuilder itself."""
    source = f"./{wheel}" if wheel else f"{self_wheel.DISTRIBUTION}=={__version__}"
    return f"{source} --hash=sha256:"


def _requirements(plan: Workflow, wheel: str, settings: Settings) -> RenderedFile:
    """Return the requirements file from which jobs install envbuilder."""
    if wheel:
        installed = self_wheel.Wheel(file=wheel, content=Path(wheel).read_bytes())
    else:
        installed = self_wheel.released(settings)
    extra = "conda" if any(row.backend == "conda" for row in plan.rows) else ""
    text = (
        f"# {MARK}: run this again instead.\n#   {shlex.join(plan.arguments)}\n"
        f"{_begin_of_own_line(wheel)}{hashlib.sha256(installed.content).hexdigest()}\n"
        f"{self_wheel.pinned(installed, OLDEST_PYTHON, settings, extra)}"
    )
    return RenderedFile(name=Path(plan.requirements).name, content=text.encode())


def _require_current(path: str, expected: str, again: str, *, whole: bool = True) -> None:
    """Raise `InvalidError` unless the file at `path` can be read and has the expected text.

    If `whole` is false, the file only needs to contain the expected text. `again` is the command
    that rewrites the file; it is shown in the error's hint.
    """
    try:
        current = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: cannot be read: {error}", f"Run: {again}") from error
    if current != expected and (whole or expected not in current):
        raise InvalidError(
            f"{path} is stale: it differs from what would be written now", f"Run: {again}"
        )
