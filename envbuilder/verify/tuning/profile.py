"""The user's own profile of this machine: a variant that holds what helped here.

What helps belongs to a host, so it is never written into a shipped profile or a project's. The
variant extends the profile that was measured, is only used on request, and takes over its lock,
which what is written here does not decide.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from msgspec import Struct

from envbuilder.core import files as atomic
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.schema import read_text
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles
from envbuilder.verify.tuning.rules import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.verify.tuning.rules import Finding

SUFFIX = "-tuned"


class Draft(Struct, frozen=True, kw_only=True):
    """A profile that could be written; `old` is what is there now, None for nothing.

    `lock` is the text of its lock, None where the measured profile has none that fits.
    """

    name: str
    path: Path
    text: str
    old: str | None
    lock_path: Path
    lock: str | None

    @property
    def diff(self) -> str:
        """What writing it would change; empty for nothing."""
        before = (self.old or "").splitlines(keepends=True)
        after = self.text.splitlines(keepends=True)
        names = ("/dev/null" if self.old is None else str(self.path)), str(self.path)
        return "".join(difflib.unified_diff(before, after, *names))


def draft(name: str, findings: Sequence[Finding], machine: str, settings: Settings) -> Draft:
    """The tuned variant of profile `name` with the settings of `findings`.

    `InvalidError` where a project has a profile of that name, which is not the user's to change.
    """
    folders = profiles.search_path(settings.project, settings.config_dir)
    user = settings.config_dir / "profiles"
    keys, measured = merged([f.setting for f in findings]), profiles.load(name, folders)
    extends = name
    if name.endswith(SUFFIX) and measured.extends is not None:
        # What it had was in effect while it was measured, so it stays.
        extends, variant = measured.extends, name
        environment = {**measured.environment, **keys.get("environment", {})}
        keys = {"preload": list(measured.preload), **keys, "environment": environment}
    else:
        variant = name + SUFFIX
    file = f"{variant}.yaml"
    holder = next((f for f in folders if (f / file).is_file()), user)
    if holder != user:
        raise InvalidError(
            f"{holder / file}: is there already, and is not in your own folder {user}",
            "Rename it, or leave out --write.",
        )
    text = _text(extends, machine, findings, keys, measured.warnings)
    path = user / file
    profile = _check(variant, text, folders)
    return Draft(
        name=variant,
        path=path,
        text=text,
        old=read_text(path) if path.is_file() else None,
        lock_path=user / "locks" / f"{variant}.json",
        lock=_lock(extends, profile, folders),
    )


def write(made: Draft) -> None:
    """Write lock and profile, each whole or not at all; `BuildError` when that is not possible.

    The lock comes first: without its profile it means nothing.
    """
    try:
        if made.lock is not None:
            atomic.write(made.lock_path, made.lock.encode())
        atomic.write(made.path, made.text.encode())
    except OSError as error:
        raise BuildError(
            f"{error.filename or made.path}: cannot be written: {error.strerror or error}",
            "Set ENVBUILDER_CONFIG_DIR to a folder you can write to.",
        ) from error


def _text(
    extends: str,
    machine: str,
    findings: Sequence[Finding],
    keys: dict[str, Any],
    warnings: Sequence[str],
) -> str:
    lines = [
        "# Written by `envbuilder verify --tune --write` from what was measured on one machine:",
        f"# {_comment(machine)}. Another machine needs its own: do not share this file.",
        *(f"# {_comment(f.setting.name)}: {f.gain or 0:.2f} times as fast" for f in findings),
    ]
    data = {
        "extends": extends,
        "description": f"{extends}, tuned for this machine",
        # A machine's own settings are never chosen without being asked for.
        "opt_in": True,
        **keys,
        **({"warnings": list(warnings)} if warnings else {}),
    }
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return "\n".join(lines) + "\n" + body


def _comment(text: str) -> str:
    """Text on one line: a line end in it would leave the comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _check(name: str, text: str, folders: Sequence[Path]) -> profiles.Profile:
    """The profile that the text will be, read as every profile is."""
    with TemporaryDirectory(prefix="envbuilder-") as scratch:
        (Path(scratch) / f"{name}.yaml").write_text(text, encoding="utf-8")
        return profiles.load(name, (Path(scratch), *folders))


def _lock(extends: str, profile: profiles.Profile, folders: Sequence[Path]) -> str | None:
    path = lockfile.path_for(extends, folders)
    if path is None:
        return None
    try:
        lock = lockfile.load(path)
    except InvalidError:
        return None
    if lock.inputs != lockfile.inputs_digest(profile):
        return None
    return lockfile.dump(msgspec.structs.replace(lock, profile=profile.name))
