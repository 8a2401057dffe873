"""Draft a profile for this machine: the measured one plus the settings that helped.

Settings that help are specific to a host, so they are never written into an existing profile: the
draft is printed for the user to save. It extends the measured profile and is used only on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from msgspec import Struct

from envbuilder.core.text import printable
from envbuilder.profiles import profile
from envbuilder.verify.tuning.rules import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.verify.tuning.rules import Finding

SUFFIX = "-tuned"


class Draft(Struct, frozen=True, kw_only=True):
    """The name and YAML of a profile that the user may save."""

    name: str
    text: str


def draft(name: str, findings: Sequence[Finding], machine: str, settings: Settings) -> Draft:
    """Return the tuned variant of profile `name` with the settings of `findings`."""
    folders = profile.search_path(settings.project, settings.config_dir)
    keys, measured = merged([f.setting for f in findings]), profile.load(name, folders)
    extends, variant = name, name + SUFFIX
    if name.endswith(SUFFIX) and measured.extends is not None:
        # Its settings were in effect during the measurement, so they stay.
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
        f"# {printable(machine)}. Another machine needs its own: do not share this file.",
        *(
            f"# {printable(f.setting.name)}: {f.gain or 0:.2f} times as fast"
            + (f" ({f.setting.caution})" if f.setting.caution else "")
            for f in findings
        ),
    ]
    data = {
        "extends": extends,
        "description": f"{extends}, tuned for this machine",
        # Machine-specific settings are never selected automatically.
        "opt_in": True,
        **keys,
        **({"warnings": list(warnings)} if warnings else {}),
    }
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return "\n".join(lines) + "\n" + body
