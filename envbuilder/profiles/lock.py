"""Locks: one JSON file per profile that lists the exact files of its environments.

A lock identifies each file by its SHA-256 and a symbolic source, never by a URL on a package index,
so that the lock works with any mirror.

The module is long because each key is described where it is defined.
"""

# No annotations from __future__: msgspec would evaluate the text of each, at every start.

import datetime
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import (
    Hint,
    InvalidError,
    ToolError,
    UnlockedError,
    escaped,
    one_line,
    wrapped,
)
from envbuilder.core.settings import ProjectPath
from envbuilder.profiles.profile import IMAGE_PYTHON, Profile
from envbuilder.profiles.requirements import same_version

MAIN = "debian"
"""Symbolic source: Debian's main archive."""
SECURITY = "debian-security"
"""Symbolic source: Debian's security archive."""
BUILT = "built"
"""Symbolic source: a wheel built from source. Its recipe describes the build."""
DIRECT = "url"
"""Symbolic source: a wheel for which the project gives a URL. The URL is in its recipe."""
PRUNED = "pruned"
"""Symbolic source: a wheel from an index with some of its files removed. The removed files are
listed in its recipe."""
OF_NO_INDEX = frozenset({BUILT, DIRECT, PRUNED})
_DEBIAN_SOURCES = frozenset({MAIN, SECURITY})


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The source of a wheel, and everything needed to build it."""

    kind: types.SourceKind
    location: types.SourceLocation
    """The file name of an sdist or a wheel on the index; the URL of a repository, an archive or a
    wheel; or a folder of the project. A wheel is used as it is, without a build."""
    sha256: types.Sha256
    """The SHA-256 of the source file. For a repository or a folder, it covers all files in sorted
    order."""
    commit: types.Commit = ""
    """The commit that `reference` named when the lock was made. It is kept until the package is
    upgraded."""
    reference: types.Reference = ""
    """The branch, tag or commit that the project specifies. Empty for the default branch."""
    subdirectory: types.Subfolder = ""
    """The folder to build, if it is not the top-level folder."""
    requires: tuple[types.Sha256, ...] = ()
    """The SHA-256 of each wheel to install for the build. These wheels are listed in the target's
    `build_files`."""
    with_framework: bool = False
    """Whether the target's own wheels are also installed for the build, because the build imports
    the framework."""
    index: types.Source = "default"
    """The index that offers the original of a pruned wheel."""
    without: tuple[types.FilePath, ...] = ()
    """Paths below site-packages to leave out, because another package installs the same files."""
    without_programs: tuple[types.FilePath, ...] = ()
    """Programs in `bin` to leave out, because a package that the project lists provides them."""
    cuda_architectures: types.CudaArchitectures = ""
    """The GPUs for which to compile CUDA code, in the syntax of TORCH_CUDA_ARCH_LIST."""


class File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A locked file, such as a wheel, a Debian package or an interpreter."""

    kind: types.FileKind
    # Of a union of their types only the last pattern would be checked.
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\Z")]
    """The name of the distribution, the Debian package or the conda package."""
    version: types.FileVersion
    file: types.FilePath
    """The file name of a wheel, or the path of a .deb below the archive's root."""
    sha256: types.Sha256
    size: types.FileSize | None
    """The size in bytes, or null if no source states it."""
    source: types.Source
    provenance: types.Provenance
    by: types.Sentence
    """Where the hash was found, or which third-party lock file contains it."""
    role: types.Role = ""
    """`base` for a package that is part of the base itself, rather than installed on top of the
    base."""
    size_about: types.FileSize | None = None
    """The approximate size in bytes, if no source states `size`. It is used only to estimate disk
    space and progress."""
    requires: tuple[types.Distribution, ...] = ()
    """The packages that this package requires, all from the same target. Set only in the locks of
    projects."""
    recipe: Recipe | None = None
    """How to build the wheel, if no index offers it. A file of the kind `source` has not been built
    yet, so its `file` and `sha256` describe the source."""
    unread: bool = False
    """Whether `lock` could not read the list of files in the wheel, because the server does not
    support partial downloads. Such a wheel was not compared with the target's other wheels. The
    same is true of every file whose hash is a `claim`."""

    @property
    def room(self) -> int:
        """The file's size in bytes, exact or approximate; 0 if neither size is known."""
        return self.size or self.size_about or 0

    @property
    def is_built(self) -> bool:
        """Whether the file is built by running code from the package.

        The file is built either on this machine or where the lock was made.
        """
        return self.recipe is not None and self.recipe.kind != "wheel"

    @property
    def basename(self) -> str:
        """The file name without its folder."""
        return self.file.rpartition("/")[2]


def problem(files: Iterable[File]) -> str:
    """Return a description of the first problem with a target's files; empty if there is none."""
    seen: set[tuple[str, str]] = set()
    for file in files:
        if wrong := (_deb(file) if file.kind == "deb" else _wheel(file)):
            return f"{file.file}: {wrong}"
        if (file.kind, file.name) in seen:
            return f"{file.file}: {file.kind} {file.name} is listed twice"
        seen.add((file.kind, file.name))
    return ""


def _wheel(file: File) -> str:  # noqa: PLR0911 (one return per fault reads best)
    if (file.kind == "source" or file.source in OF_NO_INDEX) and file.recipe is None:
        return "recipe: missing, but no index has this file as a wheel"
    if file.recipe and file.source not in OF_NO_INDEX:
        return f"source: {file.source}, but the file has a recipe"
    if file.kind == "source":
        if file.name != types.canonical(file.name):
            return "name: is not normalised"
        return ""
    if not file.file.endswith(".whl") or "/" in file.file:
        return f"kind: {file.kind}, but the file is not a wheel"
    if file.role:
        return "role: a wheel cannot be part of a base"
    if file.source in _DEBIAN_SOURCES:
        return f"source: {file.source} has no wheels"
    if file.name != types.canonical(file.name):
        return f"name: is not normalised: expected {types.canonical(file.name)}"
    parts = file.file.split("-")
    if len(parts) not in {5, 6} or types.canonical(parts[0]) != file.name:
        return f"name: {file.name}, but the file is another distribution's"
    if not same_version(unquote(parts[1]), file.version):
        return f"version: {file.version}, but the file is of another version"
    return ""


def _deb(file: File) -> str:
    if not file.file.endswith(".deb"):
        return "kind: deb, but the file is not a Debian package"
    if file.source not in _DEBIAN_SOURCES:
        return f"source: {file.source} has no Debian packages"
    if not types.is_debian(file.name, file.version):
        return "name, version: not valid for a Debian package"
    name, _, rest = unquote(file.basename).partition("_")
    if name != file.name:
        return f"name: {file.name}, but the file is another package's"
    upstream = file.version.rpartition(":")[2]
    if rest.rpartition("_")[0] not in {file.version, upstream}:
        return f"version: {file.version}, but the file is of another version"
    return ""


SCHEMA = 2
_EARLIEST = datetime.date(1980, 1, 1)


class LockedBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of a target: an image, or a Debian system made from locked packages."""

    ref: types.ImageRef
    digest: types.Digest | None
    date: types.Date | None
    python_path: types.AbsolutePath
    python_version: types.FullPythonVersion
    suite: types.DebianSuite = ""
    """The Debian suite, if the base is made from the target's files with the role `base` rather
    than from a published image. In this case, `ref` is the name that the build gives to the
    base."""
    unpacked: bool = False
    """Whether the Debian packages of the base are only unpacked, without running their scripts."""

    @property
    def gets_python(self) -> bool:
        """Whether building an image adds the target's interpreter to the base."""
        return self.python_path.startswith(f"{IMAGE_PYTHON}/")

    @property
    def epoch(self) -> int:
        """The timestamp of all files that a build writes (SOURCE_DATE_EPOCH).

        It is given in seconds since 1970. It is the date of the base, or the earliest date that ZIP
        archives can store if the base has no date. The timestamp is derived from existing keys,
        never from a clock, so that older locks keep their digest.
        """
        date = datetime.date.fromisoformat(self.date) if self.date else _EARLIEST
        return (date - datetime.date(1970, 1, 1)) // datetime.timedelta(seconds=1)


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The locked files for one platform and Python version."""

    platform: types.Platform
    python: types.PythonVersion
    base: LockedBase | None
    files: tuple[File, ...]
    interpreter: File | None = None
    """A Python build that needs no installation, for machines and base images without this Python
    version."""
    build_files: tuple[File, ...] = ()
    """Wheels that are installed only to build other packages from source."""
    system_packages: dict[types.DebianPackage, tuple[types.Distribution, ...]] = {}
    """Debian packages that are needed in an image, each with the wheels that need it. Packages that
    the profile itself lists are not included."""

    def of_kind(self, kind: types.FileKind) -> tuple[File, ...]:
        """Return the files of one kind to be installed on top of the base, in lock order."""
        return tuple(f for f in self.files if f.kind == kind and not f.role)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each wheel, by name."""
        return {file.name: file.version for file in self.of_kind("wheel")}

    @property
    def packages(self) -> tuple[File, ...]:
        """The Python packages: wheels, and sources that have not been built yet."""
        return tuple(f for f in self.files if f.kind in {"wheel", "source"})

    @property
    def of_image(self) -> File | None:
        """The interpreter that images add to the base, or None if they do not add one."""
        if self.base and self.base.gets_python:
            return self.interpreter
        return None

    def fetched(self, *, managed: bool) -> tuple[File, ...]:
        """Return the files to download, including the interpreter if it is needed.

        Images need the interpreter if their base lacks one. If `managed` is set, the interpreter is
        always included, because every environment uses the one from the lock.
        """
        needed = self.interpreter if managed else self.of_image
        return (*self.files, *([needed] if needed else []))

    @property
    def base_files(self) -> tuple[File, ...]:
        """The Debian packages that make up the base; empty if the base is a published image."""
        return tuple(f for f in self.files if f.role == "base")


_TREE = " │├└╰─▶×:"
"""Characters that resolvers use to draw trees."""
_LONGEST_PROOF = 2000
"""Maximum number of characters of a resolver's output to keep."""
_PROOF_WIDTH = 100


class Reason(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The reason why something cannot be resolved.

    Each part of the reason is a single line in the lock file.
    """

    text: types.Sentence
    target: types.Sentence = ""
    """The target for which resolution failed, such as "linux/amd64 with Python 3.11"."""
    items: tuple[types.Sentence, ...] = ()
    """The items that the sentence is about, such as packages."""
    proof: types.Sentence = ""
    """The resolver's own explanation."""

    @property
    def sentence(self) -> str:
        """The sentence that states the reason, preceded by the target if there is one."""
        return f"{self.target}: {self.text}" if self.target else self.text

    def __str__(self) -> str:
        """Return the whole reason as a single line, for use in JSON."""
        if self.proof:
            return f"{self.sentence}. Proof: {self.proof}"
        return " • ".join([f"{self.sentence}:", *self.items]) if self.items else self.sentence

    def printed(self, width: int = _PROOF_WIDTH) -> str:
        """Format the reason for display.

        The sentence comes first, followed by the items or the proof on new lines.
        """
        lines = [wrapped(item, width, "    ", "      ") for item in self.items]
        if self.proof:
            lines = [wrapped(self.proof, width, "    ", "    ")]
        return "\n".join([f"{self.sentence}:", *lines]) if lines else self.sentence


def reason(text: str, items: Iterable[str] = (), proof: str = "") -> Reason:
    """Create a reason from untrusted text.

    `items` lists what the text is about, such as packages. `proof` is the output of a resolver.
    """
    words = " ".join(line.strip(_TREE).removeprefix("cause: ") for line in proof.splitlines())
    return Reason(
        text=one_line(text),
        items=tuple(map(one_line, items)),
        proof=escaped(" ".join(words.split()), _LONGEST_PROOF),
    )


class Decided(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The framework release and Python version chosen for a project's variant of a profile.

    The reasons for the choice are included.
    """

    release: types.FrameworkVersion
    python: types.PythonVersion
    limits: tuple[types.Sentence, ...] = ()
    """The project's limits on the framework, the Python version and the date, sorted, such as
    "torch>=2.1"."""
    as_of: types.Date | None = None
    """The last day of package releases to consider. It is never earlier than the day of the
    framework release."""
    packages: types.Sha256 | Literal[""] = ""
    """The digest of all requirements if packages need this release or Python version. Otherwise
    empty."""
    why: types.Sentence = ""
    """The reason why the release differs from that of the project's other profiles."""
    files: dict[ProjectPath, types.Sha256] = {}
    """The files that were read, each with its digest."""
    left_out: tuple[types.Sentence, ...] = ()
    """Requirements that are not installed on this hardware, or are installed under another name."""


class Lock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The lock of one profile."""

    schema: int
    profile: types.Name
    inputs: types.Sha256
    """The digest of everything in the profile that affects resolution."""
    state: types.LockState
    reason: types.Sentence
    """A sentence that says which hashes are only claimed by third parties. Empty if there are
    none."""
    tools: dict[types.Platform, File]
    """The uv executable for each platform on which envbuilder runs. Each of them can install wheels
    for any target."""
    targets: tuple[Target, ...]
    decision: Decided | None = None
    """The chosen release and Python version. Set in a project's lock if the profile has several
    builds."""
    obstacle: Reason | None = None
    """The reason why the profile could not be locked. Null unless the state is `unlocked`."""
    missing: dict[str, Reason] = {}
    """Targets of a project that cannot be resolved, such as "linux/arm64 3.12", each with the
    reason. The lock can be used for the other targets."""

    @property
    def why(self) -> str:
        """The reason why the state is not `locked`, on one line; empty if the state is `locked`."""
        return str(self.obstacle or self.reason)

    @property
    def files(self) -> tuple[File, ...]:
        """All files that images need; a file that several targets share occurs several times."""
        result = [*self.tools.values()]
        for target in self.targets:
            result += target.fetched(managed=False)
        return tuple(result)

    def tool(self, platform: types.Platform | None) -> File:
        """Return the locked uv executable for a platform.

        Raise `ToolError` if no lock can contain uv for the platform, and `InvalidError` if only
        this lock lacks it.
        """
        if platform is None:
            raise ToolError(
                f"locks contain uv only for {', '.join(types.PLATFORMS)}, not for this machine",
                "Build on a listed platform. For an image, you can also use an engine: --builder"
                " buildkit.",
            )
        if platform not in self.tools:
            raise InvalidError(
                f"the lock of '{self.profile}' contains no uv for {platform}",
                Hint("Make it again", ("lock", "--profile", self.profile)),
            )
        return self.tools[platform]


def inputs_digest(profile: Profile) -> str:
    """Return the SHA-256 of the parts of a profile that affect resolution."""
    has_debs = profile.system_packages or profile.debian_base
    decides: dict[str, Any] = {
        "requirements": profile.requirements,
        "indexes": profile.indexes,
        "python": profile.python.supported,
        "platforms": profile.platforms,
        "base": profile.base,
        # Without packages the suite decides nothing.
        "debian_suite": profile.debian_suite if has_debs else "",
        "system_packages": profile.system_packages,
        "tools": profile.tools,
    }
    sources = (replace(source, where="", digest="") for source in profile.resolution.sources)
    resolution = replace(profile.resolution, sources=tuple(sources))
    # Only if set, so that locks that predate these keys stay fresh.
    later = {
        "debian_base": profile.debian_base,
        "constraints": profile.constraints,
        "managed": profile.python.managed,
        "resolution": msgspec.to_builtins(resolution),
    }
    decides |= {key: value for key, value in later.items() if value}
    return hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()


def changed(profile: Profile, lock: Lock) -> str:
    """Return what changed after the lock was made, or an empty string if nothing did.

    The result is "the profile" or the location of a source.
    """
    if lock.inputs != inputs_digest(profile):
        return "the profile"
    for target in lock.targets:
        for file in target.packages:
            source = profile.resolution.source_of(file.name, target.platform, target.python)
            if source and file.recipe and source.digest not in {"", file.recipe.sha256}:
                return source.location
    return ""


def lock_digest(lock: Struct) -> str:
    """Return the SHA-256 of a lock of any kind, without the interpreters that no image uses."""
    if isinstance(lock, Lock):
        targets = [t if t.of_image else replace(t, interpreter=None) for t in lock.targets]
        lock = replace(lock, targets=(*targets,))
    return hashlib.sha256(msgspec.json.encode(lock, order="sorted")).hexdigest()


def path_for(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the path of a profile's lock in the first folder that contains one.

    Return None if no folder contains a lock of the profile.
    """
    for folder in folders:
        path = folder / "locks" / f"{name}.json"
        if path.is_file():
            return path
    return None


def load(path: Path) -> Lock:
    """Read a lock; raise `InvalidError` if it is damaged or its schema is unknown."""
    return parse(content(path, ("lock",)), path)


def parse(read: bytes, path: Path) -> Lock:
    """Parse the content of a lock file; raise `InvalidError` in the same cases as `load`.

    `read` is the content, and `path` is the file that it was read from.
    """
    return decoding.decode_lock(read, path, Lock, SCHEMA, _check, "lock", ("lock",))


def content(path: Path, command: tuple[str, ...]) -> bytes:
    """Return the content of a lock file of any kind as bytes.

    Raise `InvalidError` if the file cannot be read. `command` is the envbuilder command that
    creates the lock, for the hint in the error.
    """
    try:
        return files.read(path, decoding.LARGEST)
    except OSError as error:
        raise InvalidError(
            f"{path}: not a lock: {error}", Hint("Make it again", command)
        ) from error


def _check(lock: Lock, path: Path) -> None:
    """Raise `InvalidError` if a lock violates a rule that its types cannot express.

    For example, targets and files must not occur twice, and the state must match the files.
    """
    pairs = [(t.platform, t.python) for t in lock.targets]
    if len(set(pairs)) != len(pairs):
        raise InvalidError(f"{path}: targets: a pair of platform and Python appears twice")
    for target in lock.targets:
        where = f"{path}: {target.platform} {target.python}"
        wrong = next(filter(None, map(_wheel, target.build_files)), "")
        if wrong := problem(target.files) or _interpreter(target) or wrong:
            raise InvalidError(f"{where}: {wrong}")
        try:
            _ = target.base and target.base.epoch
        except ValueError as error:
            raise InvalidError(f"{where}: base: date: {error}") from error
        if bool(target.base and target.base.suite) != bool(target.base_files):
            raise InvalidError(
                f"{where}: a base made of packages must have files, and any other base must have"
                " none"
            )
    _check_tools(lock, path)
    if lock.state == "locked" and any(f.provenance != "read" for f in lock.files):
        raise InvalidError(f"{path}: state: locked, but the provenance of some files is not 'read'")
    if (lock.state == "unlocked") != bool(lock.obstacle):
        raise InvalidError(f"{path}: obstacle: required if the state is unlocked, else not allowed")
    if lock.state != "unlocked" and not lock.targets:
        raise InvalidError(f"{path}: targets: empty, but the state is {lock.state}")


def _interpreter(target: Target) -> str:
    """Return a description of the problem with a target's interpreter; empty if there is none."""
    if not (file := target.interpreter):
        if target.base and target.base.gets_python:
            return "interpreter: missing, but the base image needs it"
        return ""
    matched = re.fullmatch(
        rf"cpython-({re.escape(target.python)}\.\d+)\+.+\.tar\.gz", file.basename
    )
    if file.kind == "python" and matched and matched[1] == file.version:
        return ""
    return f"interpreter: {file.file}: not a build of Python {target.python}"


def _check_tools(lock: Lock, path: Path) -> None:
    """Raise `InvalidError` unless the lock has the same version of uv for every platform.

    An unlocked lock may lack uv for some platforms.
    """
    kinds = sorted({f"{f.kind} {f.name} {f.version}" for f in lock.tools.values()})
    if len(kinds) > 1 or not all(k.startswith("tool uv ") for k in kinds):
        raise InvalidError(f"{path}: tools: expected one version of uv, found {', '.join(kinds)}")
    for tool in lock.tools.values():
        if wrong := problem([tool]):
            raise InvalidError(f"{path}: tools: {wrong}")
    lacking = [p for p in types.PLATFORMS if p not in lock.tools]
    if lacking and lock.state != "unlocked":
        raise InvalidError(f"{path}: tools: no uv for {', '.join(lacking)}")


def dump(lock: Struct, entries: str = "files") -> str:
    """Return a lock of any kind as JSON, with one locked file per line for readable diffs.

    `entries` is the name of the key that contains a target's files.
    """
    import json

    data: dict[str, Any] = msgspec.to_builtins(lock)
    targets = data.pop("targets")
    tools = data.pop("tools", None)
    head = json.dumps(data, indent=1, ensure_ascii=False).removesuffix("\n}")
    if tools is not None:
        each = [f'\n  "{p}": {json.dumps(f, ensure_ascii=False)}' for p, f in tools.items()]
        head += f',\n "tools": {{{",".join(each)}' + ("\n }" if each else "}")
    blocks = []
    for target in targets:
        files = target.pop(entries)
        lines = ",\n".join("   " + json.dumps(e, ensure_ascii=False) for e in files)
        block = json.dumps(target, indent=2, ensure_ascii=False).removesuffix("\n}")
        blocks.append(f'{block},\n  "{entries}": [\n{lines}\n  ]}}')
    return f'{head},\n "targets": [{",".join(blocks)}]\n}}\n'


OTHER_PYTHON = "To use another Python, set python: in envbuilder.yaml or in a profile."


def select(lock: Lock, platform: str, python: str) -> Target:
    """Return the target for a platform and Python version.

    Raise `InvalidError` if the lock does not contain this target.
    """
    if target := target_of(lock, platform, python):
        return target
    have = ", ".join(f"{t.platform} Python {t.python}" for t in lock.targets) or "nothing"
    what = f"the lock of '{lock.profile}' has no files for {platform} with Python {python}"
    if cause := lock.missing.get(f"{platform} {python}"):
        raise InvalidError(f"{what}: {cause.printed()}", Hint("Then run", ("lock",)))
    raise InvalidError(what, f"It covers: {have}. {OTHER_PYTHON}")


def target_of(lock: Lock | None, platform: str, python: str) -> Target | None:
    """Return the target for a platform and Python version, or None if there is none."""
    for target in lock.targets if lock else ():
        if (target.platform, target.python) == (platform, python):
            return target
    return None


def first(lock: Lock | None, platform: str | None) -> Target | None:
    """Return the first target for a platform, or None if there is none.

    The target may be for any Python version.
    """
    for target in lock.targets if lock else ():
        if target.platform == platform:
            return target
    return None


def pythons(lock: Lock, platform: str | None, default: str) -> list[str]:
    """Return the Python versions that a lock covers on a platform, starting with the default."""
    versions = [t.python for t in lock.targets if t.platform == platform]
    return sorted(versions, key=lambda python: python != default)


def nothing(profile: Profile) -> Lock:
    """Return an empty lock, for an environment that needs no files from it."""
    return Lock(
        schema=SCHEMA,
        profile=profile.name,
        inputs=inputs_digest(profile),
        state="locked",
        reason="",
        tools={},
        targets=(),
    )


def require_usable(profile: Profile, lock: Lock | None, *, of_project: bool = False) -> Lock:
    """Return the lock; raise `InvalidError` if it is missing, stale or unlocked.

    If `of_project` is set, a missing or stale lock raises `UnlockedError` instead, because
    `envbuilder lock` can make it. All locks of a project are made together.
    """
    hint = Hint("Run", ("lock",) if of_project else ("lock", "--profile", profile.name))
    outdated = UnlockedError if of_project else InvalidError
    if lock is None:
        raise outdated(f"profile '{profile.name}' has no lock", hint)
    if what := changed(profile, lock):
        if of_project and what == "the profile":
            what = "the project or the profile"
        raise outdated(
            f"the lock of '{profile.name}' is stale: {what} changed after it was made", hint
        )
    if lock.state == "unlocked":
        obstacle = f": {lock.obstacle.printed()}" if lock.obstacle else ""
        raise InvalidError(f"profile '{profile.name}' is not locked{obstacle}", hint)
    return lock
