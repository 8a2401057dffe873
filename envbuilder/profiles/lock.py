"""Locks: the exact files of a profile, in one JSON file per profile.

A lock identifies files by sha256 and symbolic source, never by the URL of a package index, so that
it works behind any mirror.
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
"""Symbolic source: a wheel that was built from source, by its recipe."""
DIRECT = "url"
"""Symbolic source: a wheel that the project gives by URL, which is in its recipe."""
PRUNED = "pruned"
"""Symbolic source: an index's wheel without some of its files, by its recipe."""
OF_NO_INDEX = frozenset({BUILT, DIRECT, PRUNED})
_DEBIAN_SOURCES = frozenset({MAIN, SECURITY})


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The source of a wheel, and what builds it."""

    kind: types.SourceKind
    location: types.SourceLocation
    """The file name of an sdist or a wheel on the index, the URL of a repository, an archive or a
    wheel, or a folder of the project. A wheel is not built."""
    sha256: types.Sha256
    """Of an sdist; for a repository or a folder, over its sorted files."""
    commit: types.Commit = ""
    """The commit of `reference` when it was locked; it stays until an upgrade."""
    reference: types.Reference = ""
    """The branch, tag or commit that the project names; empty: the default branch."""
    subdirectory: types.Subfolder = ""
    """The folder to build, if it is not the top one."""
    requires: tuple[types.Sha256, ...] = ()
    """The wheels to install for the build, among the target's `build_files`."""
    with_framework: bool = False
    """Whether the target's own wheels are installed, too, because the build imports the framework.
    """
    index: types.Source = "default"
    """The source of a pruned wheel."""
    without: tuple[types.FilePath, ...] = ()
    """Paths below site-packages to leave out, because another package installs them, too."""
    without_programs: tuple[types.FilePath, ...] = ()
    """Programs in `bin` to leave out, because the package that the project lists has them."""
    cuda_architectures: types.CudaArchitectures = ""
    """The GPUs to compile CUDA code for, as in TORCH_CUDA_ARCH_LIST."""


class File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A locked file."""

    kind: types.FileKind
    # Of a union of their types only the last pattern would be checked.
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\Z")]
    """Distribution, Debian or conda package."""
    version: types.FileVersion
    file: types.FilePath
    """The wheel's file name, or a .deb's path below the archive root."""
    sha256: types.Sha256
    size: types.FileSize | None
    """Bytes; null if no source states it."""
    source: types.Source
    provenance: types.Provenance
    by: types.Sentence
    """Where the hash was read, or which third-party lock file claims it."""
    role: types.Role = ""
    """`base`: part of the base itself, not installed on top of it."""
    size_about: types.FileSize | None = None
    """Approximate size if no source states `size`: for disk space and progress only."""
    requires: tuple[types.Distribution, ...] = ()
    """The packages of the same target that it requires; only in locks of projects."""
    recipe: Recipe | None = None
    """How the wheel is built, if no index has it. Of the kind `source`, it is not built yet: `file`
    and `sha256` are then those of the source."""
    unread: bool = False
    """Whether `lock` could not read the list of the wheel's files, because its server does not
    serve parts of it. Like each `claim`, it was not compared with the target's other wheels."""

    @property
    def room(self) -> int:
        """Its size in bytes, as far as a source states it; else 0."""
        return self.size or self.size_about or 0

    @property
    def is_built(self) -> bool:
        """Whether its own code runs to make it, here or where it was locked."""
        return self.recipe is not None and self.recipe.kind != "wheel"

    @property
    def basename(self) -> str:
        """The file name without its folder."""
        return self.file.rpartition("/")[2]


def problem(files: Iterable[File]) -> str:
    """Return the problem with the files of one target; empty if there is none."""
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
        return "recipe: missing, and no index has it as a wheel"
    if file.recipe and file.source not in OF_NO_INDEX:
        return f"source: {file.source}, but it has a recipe"
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
        return "name, version: not those of a Debian package"
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
    """Set if the base is a system of this suite, made from the target's files with the role `base`,
    instead of a published image. `ref` is then the name that the build gives it."""
    unpacked: bool = False
    """Whether those packages are only unpacked, without running their scripts."""

    @property
    def gets_python(self) -> bool:
        """Whether images add the target's interpreter as its Python."""
        return self.python_path.startswith(f"{IMAGE_PYTHON}/")

    @property
    def epoch(self) -> int:
        """The timestamp of everything that a build writes (SOURCE_DATE_EPOCH): the base's date.

        It is derived from existing keys, never from a clock, so that older locks keep their digest.
        A base without a date gets the earliest date that ZIP archives can store.
        """
        date = datetime.date.fromisoformat(self.date) if self.date else _EARLIEST
        return (date - datetime.date(1970, 1, 1)) // datetime.timedelta(seconds=1)


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """All files for one platform and Python version."""

    platform: types.Platform
    python: types.PythonVersion
    base: LockedBase | None
    files: tuple[File, ...]
    interpreter: File | None = None
    """A Python build that needs no installation, for machines and bases without that Python."""
    build_files: tuple[File, ...] = ()
    """Wheels that are only installed to build others from source."""
    system_packages: dict[types.DebianPackage, tuple[types.Distribution, ...]] = {}
    """If wheels need packages in an image: Debian packages, each with the wheels that need it,
    without the profile's own."""

    def of_kind(self, kind: types.FileKind) -> tuple[File, ...]:
        """Return the files of one kind that are installed on the base, in the lock's order."""
        return tuple(f for f in self.files if f.kind == kind and not f.role)

    @property
    def versions(self) -> dict[str, str]:
        """Return the version of each of its wheels."""
        return {file.name: file.version for file in self.of_kind("wheel")}

    @property
    def packages(self) -> tuple[File, ...]:
        """Return its Python packages: wheels, and sources that are not built yet."""
        return tuple(f for f in self.files if f.kind in {"wheel", "source"})

    @property
    def of_image(self) -> File | None:
        """The interpreter, if images add it to their base."""
        if self.base and self.base.gets_python:
            return self.interpreter
        return None

    def fetched(self, *, managed: bool) -> tuple[File, ...]:
        """Return its files, with its interpreter if that is always used.

        That is so in images that need it and, if it is `managed`, in every environment.
        """
        needed = self.interpreter if managed else self.of_image
        return (*self.files, *([needed] if needed else []))

    @property
    def base_files(self) -> tuple[File, ...]:
        """The packages of the base itself; none if it is an image."""
        return tuple(f for f in self.files if f.role == "base")


_TREE = " │├└╰─▶×:"
"""Characters with which resolvers draw trees."""
_LONGEST_PROOF = 2000
"""Maximum characters of a resolver's output."""
_PROOF_WIDTH = 100


class Reason(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Why something cannot be resolved: parts of one line each, which a lock can store."""

    text: types.Sentence
    target: types.Sentence = ""
    """The target that decided it, such as "linux/amd64 with Python 3.11"."""
    items: tuple[types.Sentence, ...] = ()
    """The subjects of the sentence, one by one."""
    proof: types.Sentence = ""
    """The explanation in a resolver's words."""

    @property
    def sentence(self) -> str:
        """Return the sentence with its target."""
        return f"{self.target}: {self.text}" if self.target else self.text

    def __str__(self) -> str:
        """Return all of it as one line, for JSON."""
        if self.proof:
            return f"{self.sentence}. Proof: {self.proof}"
        return " • ".join([f"{self.sentence}:", *self.items]) if self.items else self.sentence

    def printed(self, width: int = _PROOF_WIDTH) -> str:
        """Format it for people: the sentence, and the items or the proof on lines below."""
        lines = [wrapped(item, width, "    ", "      ") for item in self.items]
        if self.proof:
            lines = [wrapped(self.proof, width, "    ", "    ")]
        return "\n".join([f"{self.sentence}:", *lines]) if lines else self.sentence


def reason(text: str, items: Iterable[str] = (), proof: str = "") -> Reason:
    """Return a reason from untrusted text; `proof` is a resolver's output."""
    words = " ".join(line.strip(_TREE).removeprefix("cause: ") for line in proof.splitlines())
    return Reason(
        text=one_line(text),
        items=tuple(map(one_line, items)),
        proof=escaped(" ".join(words.split()), _LONGEST_PROOF),
    )


class Decided(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The release and the Python of a project on a profile, and the reasons for them."""

    release: types.FrameworkVersion
    python: types.PythonVersion
    limits: tuple[types.Sentence, ...] = ()
    """The project's limits on framework, Python and day, sorted: "torch>=2.1"."""
    as_of: types.Date | None = None
    """The day of which packages are taken, never before the release's."""
    packages: types.Sha256 | Literal[""] = ""
    """Digest of all requirements, if packages needed this release or Python; else empty."""
    why: types.Sentence = ""
    """Why the release differs from that of the project's other profiles."""
    files: dict[ProjectPath, types.Sha256] = {}
    """The files that were read, each with its digest."""
    left_out: tuple[types.Sentence, ...] = ()
    """Requirements that this hardware does without or has under another name."""


class Lock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The lock of one profile."""

    schema: int
    profile: types.Name
    inputs: types.Sha256
    """Digest of everything in the profile that affects resolution."""
    state: types.LockState
    reason: types.Sentence
    """Which hashes are claims; empty if there are none."""
    tools: dict[types.Platform, File]
    """uv for each platform on which envbuilder runs; installs wheels for any target."""
    targets: tuple[Target, ...]
    decision: Decided | None = None
    """In a project, the decision for a profile with several builds."""
    obstacle: Reason | None = None
    """Why the state is `unlocked`; None if it is not."""
    missing: dict[str, Reason] = {}
    """Targets of a project (such as "linux/arm64 3.12") that cannot be resolved, and why; the lock
    is used for the others."""

    @property
    def why(self) -> str:
        """Why the state is not `locked`, in one line; else empty."""
        return str(self.obstacle or self.reason)

    @property
    def files(self) -> tuple[File, ...]:
        """All files that images need; a file of several targets is repeated for each."""
        result = [*self.tools.values()]
        for target in self.targets:
            result += target.fetched(managed=False)
        return tuple(result)

    def tool(self, platform: types.Platform | None) -> File:
        """Return the locked uv that runs on a platform.

        Raises `ToolError` if no lock can have one, `InvalidError` if this one does not.
        """
        if platform is None:
            raise ToolError(
                f"uv is locked for {', '.join(types.PLATFORMS)}, but not for this machine",
                "Build on such a machine; an image can also be built by an engine: --builder"
                " buildkit.",
            )
        if platform not in self.tools:
            raise InvalidError(
                f"the lock of '{self.profile}' names no uv for {platform}",
                Hint("Make it again", ("lock", "--profile", self.profile)),
            )
        return self.tools[platform]


def inputs_digest(profile: Profile) -> str:
    """Return the sha256 of the parts of a profile that affect resolution."""
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
    """Return what changed since a lock was made: the profile or a source; empty if nothing did."""
    if lock.inputs != inputs_digest(profile):
        return "the profile"
    for target in lock.targets:
        for file in target.packages:
            source = profile.resolution.source_of(file.name, target.platform, target.python)
            if source and file.recipe and source.digest not in {"", file.recipe.sha256}:
                return source.location
    return ""


def lock_digest(lock: Struct) -> str:
    """Return the sha256 of a lock of any kind, without interpreters that no image gets."""
    if isinstance(lock, Lock):
        targets = [t if t.of_image else replace(t, interpreter=None) for t in lock.targets]
        lock = replace(lock, targets=(*targets,))
    return hashlib.sha256(msgspec.json.encode(lock, order="sorted")).hexdigest()


def path_for(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the first lock of profile `name` in the given profile folders, or None."""
    for folder in folders:
        path = folder / "locks" / f"{name}.json"
        if path.is_file():
            return path
    return None


def load(path: Path) -> Lock:
    """Return the lock in `path`. Raises `InvalidError` if it is damaged or of an unknown schema."""
    return parse(content(path, ("lock",)), path)


def parse(read: bytes, path: Path) -> Lock:
    """Return the lock that was read from `path`. Raises `InvalidError` like `load`."""
    return decoding.decode_lock(read, path, Lock, SCHEMA, _check, "lock", ("lock",))


def content(path: Path, command: tuple[str, ...]) -> bytes:
    """Return the bytes of a lock of any kind; `command` creates it.

    Raises `InvalidError` if it cannot be read.
    """
    try:
        return files.read(path, decoding.LARGEST)
    except OSError as error:
        raise InvalidError(
            f"{path}: not a lock: {error}", Hint("Make it again", command)
        ) from error


def _check(lock: Lock, path: Path) -> None:
    """Check what types cannot express: no duplicate targets or files, a state that matches them."""
    pairs = [(t.platform, t.python) for t in lock.targets]
    if len(set(pairs)) != len(pairs):
        raise InvalidError(f"{path}: targets: a platform and Python appear twice")
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
            raise InvalidError(f"{where}: a base made of packages and its files belong together")
    _check_tools(lock, path)
    if lock.state == "locked" and any(f.provenance != "read" for f in lock.files):
        raise InvalidError(f"{path}: state: is locked, but some files are only claimed")
    if (lock.state == "unlocked") != bool(lock.obstacle):
        raise InvalidError(f"{path}: obstacle: only a lock whose state is unlocked has one")
    if lock.state != "unlocked" and not lock.targets:
        raise InvalidError(f"{path}: targets: empty, but the state is {lock.state}")


def _interpreter(target: Target) -> str:
    """Return the problem with the interpreter of a target; empty if there is none."""
    if not (file := target.interpreter):
        if target.base and target.base.gets_python:
            return "interpreter: missing, and the base image needs it"
        return ""
    matched = re.fullmatch(
        rf"cpython-({re.escape(target.python)}\.\d+)\+.+\.tar\.gz", file.basename
    )
    if file.kind == "python" and matched and matched[1] == file.version:
        return ""
    return f"interpreter: {file.file}: no build of Python {target.python}"


def _check_tools(lock: Lock, path: Path) -> None:
    """Check that the tools are one version of uv, for every platform that envbuilder runs on."""
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
    """Return a lock of any kind as text, with one of its targets' `entries` per line.

    So a diff shows what changed.
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
    """Return the target for a platform and Python. Raises `InvalidError` if the lock has none."""
    if target := target_of(lock, platform, python):
        return target
    have = ", ".join(f"{t.platform} Python {t.python}" for t in lock.targets) or "nothing"
    what = f"the lock of '{lock.profile}' has no files for {platform} with Python {python}"
    if cause := lock.missing.get(f"{platform} {python}"):
        raise InvalidError(f"{what}: {cause.printed()}", f"It covers: {have}")
    raise InvalidError(what, f"It covers: {have}. {OTHER_PYTHON}")


def target_of(lock: Lock | None, platform: str, python: str) -> Target | None:
    """Return the target for a platform and Python; None if there is none."""
    for target in lock.targets if lock else ():
        if (target.platform, target.python) == (platform, python):
            return target
    return None


def first(lock: Lock | None, platform: str | None) -> Target | None:
    """Return the first target of a platform, regardless of its Python; None if there is none."""
    for target in lock.targets if lock else ():
        if target.platform == platform:
            return target
    return None


def pythons(lock: Lock, platform: str | None, default: str) -> list[str]:
    """Return the Python versions that a lock covers on a platform, the default first."""
    versions = [t.python for t in lock.targets if t.platform == platform]
    return sorted(versions, key=lambda python: python != default)


def nothing(profile: Profile) -> Lock:
    """Return a lock without files, for an environment that needs none from it."""
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
    """Return the lock. Raises `InvalidError` if it is missing, stale or unlocked.

    `of_project`: raise `UnlockedError` if `envbuilder lock` can make it; a project's locks are made
    together.
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
