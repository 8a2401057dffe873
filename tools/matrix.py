"""Make the table of hardware, platforms, Pythons and backends, from profiles, locks and evidence.

A backend's state is the best that is shown: run here, built here, else that of the lock. What was
run or built is in `docs/evidence/runs.yaml`, each with the file that shows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import yaml
from msgspec import Struct

from envbuilder.core import resources, types
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.profiles import backends, frameworks
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envbuilder.profiles.lock import Lock, Target

REPOSITORY = Path(__file__).resolve().parent.parent
EVIDENCE = REPOSITORY / "docs" / "evidence" / "runs.yaml"
BEGIN = "<!-- Made by `make docs` -->"
END = "<!-- End -->"
_NONE = "–"
_TRIED = ("built", "run")
_STATES = (_NONE, "unlocked", "claimed", "locked", *_TRIED)
"""From the least to the best."""
_PLATFORMS = {"linux/amd64": "amd64", "linux/arm64": "arm64", "macos/arm64": "macOS"}
_LEGEND = """\
*locked*: every hash was read from a package index. *claimed*: some hashes come from other projects'
public lock files, and the first download confirms or refuses them. *built*: we built it, but never
ran it on such hardware. **run**: we trained and verified it. Nothing but **run** ever ran.
"""
_PAGE = f"""\
# Profiles, platforms, Pythons and backends

{_LEGEND}
A lock has the wheels for every backend. `docker` also needs a base image, which not every Python
has. You lock the packages for `conda` yourself (`envbuilder lock --backend conda`).

"""


class Run(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that was built or run here, and the file that shows it."""

    profile: str
    platform: types.Platform
    backend: types.Backend
    python: types.PythonVersion
    state: Literal["built", "run"]
    evidence: str
    """A path in the repository."""


class Evidence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `runs.yaml`."""

    hardware: dict[str, dict[types.Platform, str]]
    """Profile → platform → what it is for, in a few words."""
    runs: tuple[Run, ...]


class Row(Struct, frozen=True, kw_only=True):
    """A profile on one platform, with the Pythons that have the same states."""

    profile: Profile
    platform: types.Platform
    pythons: tuple[str, ...]
    states: tuple[str, ...]
    """Of each backend, in the order of `BACKENDS`."""
    evidence: tuple[str, ...]


def evidence() -> Evidence:
    """Return what was built and run here."""
    return msgspec.convert(yaml.safe_load(EVIDENCE.read_text()), Evidence)


def shipped() -> list[Row]:
    """Return the rows of the shipped profiles, those that are chosen first being the first."""
    library = Library((resources.profiles_dir(),))
    profiles = library.profiles()
    return rows(sorted(profiles, key=_rank), library.locks(profiles), evidence().runs)


def _rank(profile: Profile) -> tuple[int, int]:
    """Return the place of a profile: by framework, then by accelerator and its variants."""
    order = [
        name
        for key, row in ACCELERATORS.items()
        for name in (frameworks.first_profile(profile.framework, key), *row.variants)
    ]
    place = order.index(profile.name) if profile.name in order else len(order)
    return [*FRAMEWORKS].index(profile.framework), place


def rows(
    profiles: Sequence[Profile], locks: dict[str, Lock | None], runs: Sequence[Run]
) -> list[Row]:
    """Return a row for each profile, platform, and group of Pythons with the same states."""
    result: list[Row] = []
    for profile in profiles:
        for platform in profile.platforms:
            for python in profile.python.supported:
                row = _row(profile, platform, python, locks.get(profile.name), runs)
                last = result[-1] if result else None
                if last and _key(last) == _key(row):
                    pythons = (*last.pythons, python)
                    result[-1] = msgspec.structs.replace(last, pythons=pythons)
                else:
                    result.append(row)
    return result


def _key(row: Row) -> tuple[object, ...]:
    return row.profile.name, row.platform, row.states, row.evidence, _framework(row)


def _row(
    profile: Profile, platform: types.Platform, python: str, lock: Lock | None, runs: Sequence[Run]
) -> Row:
    of_row = [
        r for r in runs if (r.profile, r.platform, r.python) == (profile.name, platform, python)
    ]
    targets = lock.targets if lock else ()
    target = next((t for t in targets if (t.platform, t.python) == (platform, python)), None)
    return Row(
        profile=profile,
        platform=platform,
        pythons=(python,),
        states=tuple(
            _best(r.state for r in of_row if r.backend == name)
            or (_locked(target) if _offers(profile, name, platform, python) else _NONE)
            for name in backends.BACKENDS
        ),
        evidence=tuple(dict.fromkeys(r.evidence for r in of_row)),
    )


def _best(states: Iterable[str]) -> str:
    return max(states, key=_STATES.index, default="")


def _locked(target: Target | None) -> str:
    if target is None:
        return "unlocked"
    return "locked" if all(f.provenance == "read" for f in target.files) else "claimed"


def _offers(profile: Profile, backend: str, platform: types.Platform, python: str) -> bool:
    image = backends.makes_image(backend)
    possible = python in profile.image_pythons and platform.startswith("linux/")
    return backend in profile.backends and (possible or not image)


def _framework(row: Row) -> str:
    return f"{row.profile.framework} {row.profile.expected(row.pythons[0]).version}"


def page(table: Sequence[Row]) -> str:
    """Return the page with every row and what shows its states."""
    lines = [
        "| profile | framework | platform | Python | image | venv | conda | shown by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{row.profile.name}` | {_framework(row)} | {row.platform}"
        f" | {', '.join(row.pythons)} | {_cells(row.states)} | {_shown(row.evidence)} |"
        for row in table
    ]
    return _PAGE + "\n".join(lines) + "\n"


def _cells(states: Sequence[str]) -> str:
    return " | ".join(f"**{state}**" if state == "run" else state for state in states)


def _shown(paths: Sequence[str]) -> str:
    """Return links to pages of the site, and the names of other files."""
    return ", ".join(
        f"[{Path(path).name}](../{path.removeprefix('docs/')})"
        if path.startswith("docs/")
        else f"`{path}`"
        for path in paths
    )


def summary(table: Sequence[Row], hardware: dict[str, dict[types.Platform, str]]) -> str:
    """Return the table of the README: a row for each profile of PyTorch and each platform."""
    merged: dict[tuple[str, types.Platform], list[Row]] = {}
    for row in table:
        if row.profile.framework != frameworks.DEFAULT:
            continue
        merged.setdefault((row.profile.name, row.platform), []).append(row)
    lines = [
        "| profile | for | on | image | venv | conda | Python |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, platform), group in merged.items():
        brand = ACCELERATORS[group[0].profile.accelerator].brand
        words = hardware.get(name, {}).get(platform) or (f"{brand} GPUs" if brand else "CPUs")
        states = [_short(group, place) for place in range(len(backends.BACKENDS))]
        pythons = _range([python for row in group for python in row.pythons])
        lines.append(
            f"| `{name}` | {words} | {_PLATFORMS[platform]} | {' | '.join(states)} | {pythons} |"
        )
    return "\n".join(lines) + "\n"


def _short(group: Sequence[Row], place: int) -> str:
    """Return what ran or was built with one backend, and on which Pythons; else its worst lock."""
    states = [row.states[place] for row in group]
    best = _best(states)
    if best not in _TRIED:
        return min((state for state in states if state != _NONE), key=_STATES.index, default=_NONE)
    which = [row for row in group if row.states[place] == best]
    pythons = (
        "" if len(which) == len(group) else f" {_range([p for r in which for p in r.pythons])}"
    )
    return f"{_cells([best])}{pythons}"


def _range(pythons: Sequence[str]) -> str:
    minors = sorted({int(python.partition(".")[2]) for python in pythons})
    whole = len(minors) > 1 and minors[-1] - minors[0] == len(minors) - 1
    return f"3.{minors[0]}–3.{minors[-1]}" if whole else ", ".join(f"3.{m}" for m in minors)


def readme(text: str) -> str:
    """Return the README with its table made again."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{summary(shipped(), evidence().hardware)}{END}{after}"
