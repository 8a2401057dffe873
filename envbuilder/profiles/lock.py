"""Locks: which bits a profile is made of, one JSON file per profile.

A lock names files by sha256 and symbolic source, never by the URL of a package index, so that it
holds behind any mirror.
"""

from __future__ import annotations

import calendar
import datetime
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from envbuilder.core import strict_json
from envbuilder.core import types as words
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.core.schema import explain
from envbuilder.core.strict_yaml import shown
from envbuilder.profiles import locked_file as lock_entries
from envbuilder.profiles.locked_file import File

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.profiles.profile import Profile

_T = TypeVar("_T")
SCHEMA = 2
_WITH_TOOLS_IN_TARGETS = 1
"""The schema before: each target listed the uv of its own platform, and no other was locked."""
_EARLIEST = datetime.date(1980, 1, 1)


class LockedBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of a target: an image, or a Debian system made from locked packages."""

    ref: words.ImageRef
    digest: words.Digest | None
    date: words.Date | None
    python_path: words.AbsolutePath
    python_version: words.FullPythonVersion
    suite: words.DebianSuite = ""
    """Not an image that somebody published: a system of this suite, made from the target's files
    that have the role `base`. `ref` is what it is called where it is made."""
    unpacked: bool = False
    """Those packages are only unpacked; none of their scripts runs."""
    status: words.Sha256 | None = None
    """sha256 of the base's dpkg status that the target's .debs were computed for. Null: the base
    could not be read, and they go with any minimal system of the suite."""

    @property
    def epoch(self) -> int:
        """The time of everything that a build writes (SOURCE_DATE_EPOCH): the base image's date.

        It comes from what the lock says already, so that locks made earlier keep their digest, and
        never from a clock. A base without a date gets the earliest that ZIP archives can hold.
        """
        date = datetime.date.fromisoformat(self.date) if self.date else _EARLIEST
        return calendar.timegm(date.timetuple())


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All files for one platform and Python."""

    platform: words.Platform
    python: words.PythonVersion
    base: LockedBase | None
    files: tuple[File, ...]

    def of_kind(self, kind: words.FileKind) -> tuple[File, ...]:
        """The files of one kind that are installed on the base, in the lock's order."""
        return tuple(f for f in self.files if f.kind == kind and not f.role)

    @property
    def base_files(self) -> tuple[File, ...]:
        """The packages that the base itself is made of; none where it is an image."""
        return tuple(f for f in self.files if f.role == "base")


class Lock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lock of one profile."""

    schema: int
    profile: words.Name
    inputs: words.Sha256
    """Digest of everything in the profile that decides what is resolved."""
    state: words.LockState
    reason: words.Sentence
    """Why the state is not `locked`; empty where it is."""
    tools: dict[words.Platform, File]
    """uv for each platform that envbuilder runs on: it installs wheels there, for any target."""
    targets: tuple[Target, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """Every file that the lock names; one that several targets share is there several times."""
        return (*self.tools.values(), *(f for t in self.targets for f in t.files))

    def tool(self, platform: words.Platform | None) -> File:
        """The locked uv that runs on a platform; `ToolError` where no lock can have one."""
        if platform is None:
            raise ToolError(
                f"uv is locked for {', '.join(words.PLATFORMS)}, and this machine is none of these",
                "Build on such a machine; an image can also be built by an engine: --builder"
                " buildkit.",
            )
        if platform not in self.tools:
            raise InvalidError(
                f"the lock of '{self.profile}' names no uv for {platform}",
                f"Make it anew: envbuilder lock --profile {self.profile}",
            )
        return self.tools[platform]


def inputs_digest(profile: Profile) -> str:
    """sha256 over the parts of a profile that decide what is resolved."""
    decides: dict[str, Any] = {
        "requirements": profile.requirements,
        "indexes": profile.indexes,
        "python": profile.python.supported,
        "platforms": profile.platforms,
        "base": profile.base,
        "debian_suite": profile.debian_suite,
        "system_packages": profile.system_packages,
        "tools": profile.tools,
    }
    if profile.debian_base:  # only then, so that locks made before it existed stay fresh
        decides["debian_base"] = profile.debian_base
    return hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()


def lock_digest(lock: Struct) -> str:
    """sha256 over the whole content of a lock of some kind."""
    return hashlib.sha256(msgspec.json.encode(lock, order="sorted")).hexdigest()


def path_for(name: str, folders: Sequence[Path]) -> Path | None:
    """The first lock of profile `name` in the given profile folders."""
    return next((p for f in folders if (p := f / "locks" / f"{name}.json").is_file()), None)


def load(path: Path) -> Lock:
    """The lock in `path`; `InvalidError` when it is damaged or of an unknown schema."""
    lock = decoded(path, Lock, SCHEMA, "lock", "envbuilder lock")
    _check(lock, path)
    return lock


def previous(path: Path) -> Lock:
    """Return the lock in `path` for making a new one: its versions are kept where they fit.

    A lock of the schema before is read, too, without its tools. `InvalidError` as `load` raises it.
    """
    try:
        data = strict_json.loads(path.read_bytes())
        if data["schema"] != _WITH_TOOLS_IN_TARGETS:
            return load(path)
        for target in data["targets"]:
            target["files"] = [f for f in target["files"] if f["kind"] != "tool"]
        return msgspec.convert({**data, "schema": SCHEMA, "tools": {}}, Lock)
    except (OSError, ValueError, LookupError, TypeError):
        return load(path)  # which says what is wrong with it


def decoded(path: Path, kind: type[_T], schema: int, what: str, again: str) -> _T:
    """A lock file of some kind; `InvalidError` when it is damaged or of an unknown schema.

    `what` it is called, and `again` is the command that makes it.
    """
    try:
        with path.open("rb") as stream:
            data = strict_json.loads(stream.read(strict_json.LARGEST + 1))
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path}: not a lock: {error}", f"Make it anew: {again}") from error
    stated = data.get("schema") if isinstance(data, dict) else None
    if stated != schema:
        raise InvalidError(
            f"{path}: {what} schema {str(stated)[:20]} is not known to this envbuilder (it knows"
            f" {schema})",
            f"Use a newer envbuilder, or make the lock anew: {again}",
        )
    if data.get("profile") != path.name.partition(".")[0]:
        raise InvalidError(
            f"{path}: profile: says {shown(str(data.get('profile')))}: it is another profile's"
            f" {what}",
            f"Make it anew: {again}",
        )
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise explain(error, kind, str(path), "") from error


def _check(lock: Lock, path: Path) -> None:
    """What types alone cannot say: no target and no file twice, state matches the files."""
    pairs = [(t.platform, t.python) for t in lock.targets]
    if len(set(pairs)) != len(pairs):
        raise InvalidError(f"{path}: targets: a platform and Python appear twice")
    for target in lock.targets:
        names = Counter(f.basename for f in target.files)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise InvalidError(f"{path}: {target.platform} {target.python}: {twice[0]} is twice")
        if wrong := lock_entries.problem(target.files):
            raise InvalidError(f"{path}: {target.platform} {target.python}: {wrong}")
        try:
            _ = target.base and target.base.epoch
        except ValueError as error:
            raise InvalidError(
                f"{path}: {target.platform} {target.python}: base: date: {error}"
            ) from error
        loose = target.base_files and not (target.base and target.base.suite)
        if loose:
            raise InvalidError(
                f"{path}: {target.platform} {target.python}: files of a base, but no base of them"
            )
    _check_tools(lock, path)
    if lock.state == "locked" and any(f.provenance != "read" for f in lock.files):
        raise InvalidError(f"{path}: state: says locked, but some files are only claimed")
    if lock.state != "unlocked" and not lock.targets:
        raise InvalidError(f"{path}: targets: empty, but the state is {lock.state}")


def _check_tools(lock: Lock, path: Path) -> None:
    """One uv, of one version, for every platform that envbuilder runs on."""
    if any(f.kind == "tool" for t in lock.targets for f in t.files):
        raise InvalidError(f"{path}: targets: a tool belongs into `tools`, not to a target")
    kinds = sorted({f"{f.kind} {f.name} {f.version}" for f in lock.tools.values()})
    if len(kinds) > 1 or not all(k.startswith("tool uv ") for k in kinds):
        raise InvalidError(f"{path}: tools: expected one version of uv, found {', '.join(kinds)}")
    for tool in lock.tools.values():
        if wrong := lock_entries.problem([tool]):
            raise InvalidError(f"{path}: tools: {wrong}")
    lacking = [p for p in words.PLATFORMS if p not in lock.tools]
    if lacking and lock.state != "unlocked":
        raise InvalidError(
            f"{path}: tools: no uv for {', '.join(lacking)}", "Make it anew: envbuilder lock"
        )


def dump(lock: Lock) -> str:
    """A lock as text: one file a line, so that a diff shows what moved."""
    return text(lock, "files")


def text(lock: Struct, entries: str) -> str:
    """A lock of some kind as text; its targets have one of their `entries` a line."""
    import json

    data: dict[str, Any] = msgspec.to_builtins(lock)
    targets, tools = data.pop("targets"), data.pop("tools", {})
    head = json.dumps(data, indent=1, ensure_ascii=False).removesuffix("\n}")
    if isinstance(lock, Lock):
        each = [f'\n  "{p}": {json.dumps(f, ensure_ascii=False)}' for p, f in tools.items()]
        head += f',\n "tools": {{{",".join(each)}' + ("\n }" if each else "}")
    blocks = []
    for target in targets:
        listed = target.pop(entries)
        lines = ",\n".join("   " + json.dumps(e, ensure_ascii=False) for e in listed)
        block = json.dumps(target, indent=2, ensure_ascii=False).removesuffix("\n}")
        blocks.append(f'{block},\n  "{entries}": [\n{lines}\n  ]}}')
    return f'{head},\n "targets": [{",".join(blocks)}]\n}}\n'


def select(lock: Lock, platform: str, python: str) -> Target:
    """The target for a platform and Python; `InvalidError` when the lock has none."""
    for target in lock.targets:
        if (target.platform, target.python) == (platform, python):
            return target
    known = ", ".join(f"{t.platform} Python {t.python}" for t in lock.targets)
    raise InvalidError(
        f"the lock of '{lock.profile}' has no files for {platform} with Python {python}",
        f"It covers: {known or 'nothing'}. Make it anew: envbuilder lock --profile {lock.profile}",
    )


def first(lock: Lock | None, platform: str | None) -> Target | None:
    """A target of a platform, whatever its Python; None without one."""
    return next((t for t in lock.targets if t.platform == platform), None) if lock else None


def pythons(lock: Lock, platform: str | None, default: str) -> list[str]:
    """The Pythons that a lock covers on a platform, the default first."""
    found = [t.python for t in lock.targets if t.platform == platform]
    return sorted(found, key=lambda python: python != default)


def nothing(profile: Profile) -> Lock:
    """A lock without files, for an environment that takes none from it."""
    return Lock(
        schema=SCHEMA,
        profile=profile.name,
        inputs=inputs_digest(profile),
        state="locked",
        reason="",
        tools={},
        targets=(),
    )


def usable(profile: Profile, folders: Sequence[Path]) -> Lock:
    """The lock of a profile in the given profile folders, as `require_usable` returns it."""
    path = path_for(profile.name, folders)
    return require_usable(profile, load(path) if path else None)


def require_usable(profile: Profile, lock: Lock | None) -> Lock:
    """The lock, if a build may use it; `InvalidError` when missing, stale or unlocked."""
    again = f"Run: envbuilder lock --profile {profile.name}"
    if lock is None:
        raise InvalidError(f"profile '{profile.name}' has no lock", again)
    if lock.state == "unlocked":
        raise InvalidError(f"profile '{profile.name}' is not locked: {lock.reason}", again)
    if lock.inputs != inputs_digest(profile):
        raise InvalidError(
            f"the lock of '{profile.name}' is stale: the profile changed after it was made", again
        )
    return lock
