"""A profile for this machine: a variant of the one that was measured, with what helped here.

What helps belongs to a host, so it is never written into a profile: its text is printed for the
user to save. The variant extends the measured profile, and is only used on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from msgspec import Struct

from envbuilder.profiles import profile as profiles
from envbuilder.verify.tuning.rules import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.verify.tuning.rules import Finding

SUFFIX = "-tuned"


class Draft(Struct, frozen=True, kw_only=True):
    """The name of a profile that could be saved, and its YAML."""

    name: str
    text: str


def draft(name: str, findings: Sequence[Finding], machine: str, settings: Settings) -> Draft:
    """Return the tuned variant of profile `name` with the settings of `findings`."""
    folders = profiles.search_path(settings.project, settings.config_dir)
    keys, measured = merged([f.setting for f in findings]), profiles.load(name, folders)
    extends, variant = name, name + SUFFIX
    if name.endswith(SUFFIX) and measured.extends is not None:
        # What it had was in effect while it was measured, so it stays.
        extends, variant = measured.extends, name
        environment = {**measured.environment, **keys.get("environment", {})}
        keys = {"preload": list(measured.preload), **keys, "environment": environment}
    return Draft(name=variant, text=_text(extends, machine, findings, keys, measured.warnings))


def _text(
    extends: str,
    machine: str,
    findings: Sequence[Finding],
    keys: dict[str, Any],
    warnings: Sequence[str],
) -> str:
    lines = [
        "# From `envbuilder tune`, measured on one machine:",
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
