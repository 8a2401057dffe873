"""Write the scripts that activate a conda environment, with conda and without it.

conda, mamba and micromamba source the files in `etc/conda/activate.d`, and so do envbuilder's own
scripts, so that every way to activate has the same effect. py-rattler could write such a script,
too, but with the PATH of the build in it, without a way to undo it, and for fish without the
scripts of packages.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, files, resources, types
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.packages.conda.steps import WriteActivation

SCRIPT = f"{resources.OWN}/activate.sh"
"""The script to source in bash, below a prefix."""
SCRIPTS = {
    "etc/conda/activate.d/envbuilder.sh": "conda/activate-d.sh.j2",
    "etc/conda/activate.d/envbuilder.fish": "conda/activate-d.fish.j2",
    "etc/conda/deactivate.d/envbuilder.sh": "conda/deactivate-d.sh.j2",
    "etc/conda/deactivate.d/envbuilder.fish": "conda/deactivate-d.fish.j2",
    SCRIPT: "conda/activate.sh.j2",
    f"{resources.OWN}/activate.fish": "conda/activate.fish.j2",
}
"""Paths below a prefix → templates."""
_PACKAGE_VARIABLES = "etc/conda/env_vars.d"
_LARGEST = 1 << 20
"""Maximum bytes of one list of variables."""


_Value = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", description="text without null characters")]


class Quoted(Struct, frozen=True):
    """A value, quoted for each shell."""

    sh: str
    fish: str


def quoted(value: str) -> Quoted:
    """Return a value quoted so that no shell interprets it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return Quoted(sh=shlex.quote(value), fish=f"'{escaped}'")


def templates_sha256() -> str:
    """Return the sha256 of everything that determines the scripts except their values."""
    folder = resources.templates_dir() / "conda"
    found = sorted((*folder.glob("*.sh.j2"), *folder.glob("*.fish.j2")))
    texts = [[path.name, path.read_text(encoding="utf-8")] for path in found]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def write(step: WriteActivation) -> tuple[str, ...]:
    """Write the scripts, and return their paths below the prefix: host-dependent files.

    Raise `BuildError` if a package sets variables that cannot be read.
    """
    env, prefix = Path(step.env), Path(step.prefix)
    variables = {**step.variables, **({"VIRTUAL_ENV": step.venv} if step.venv else {})}
    conda = {"CONDA_PREFIX": step.prefix, "CONDA_DEFAULT_ENV": step.prefix, "CONDA_SHLVL": "1"}
    context: dict[str, Any] = {
        "mark": resources.MARK,
        "prefix": quoted(step.prefix),
        "variables": _pairs(variables),
        "programs": quoted(f"{step.venv}/bin") if step.venv else None,
        "prefix_programs": quoted(str(prefix / "bin")),
        "preload": [quoted(path) for path in step.preload],
        "package_variables": _pairs({**conda, **package_variables(env)}),
    }
    for path, template in SCRIPTS.items():
        place = env / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(resources.filled(template, context), encoding="utf-8")
    return tuple(SCRIPTS)


def _pairs(variables: Mapping[str, str]) -> list[tuple[str, Quoted]]:
    return [(name, quoted(value)) for name, value in sorted(variables.items())]


def package_variables(env: Path) -> dict[str, str]:
    """Return the variables that packages of a prefix set, as conda does: the last file wins."""
    variables: dict[str, str] = {}
    for path in sorted((env / _PACKAGE_VARIABLES).glob("*.json")):
        try:
            declared = json.loads(files.read(path, _LARGEST))
            variables |= decoding.convert(declared, dict[types.Variable, _Value])
        except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
            raise BuildError(f"{path.name}: sets invalid variables: {error}") from error
    return variables
