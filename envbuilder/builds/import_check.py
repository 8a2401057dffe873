"""Import in a built environment what the project's code imports, and what it requires.

The modules are imported as the environment's commands would, each in a process of its own. A module
that only lacks a device of this machine is not judged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds.access import hooked, of_project
from envbuilder.builds.payload import TIMEOUT_SECONDS
from envbuilder.core import decoding, process
from envbuilder.core.errors import VerifyError, printable
from envbuilder.profiles.requirements import distribution
from envbuilder.project import code, repository, variants

if TYPE_CHECKING:
    from envbuilder.builds.request import Built

_SCRIPT = Path(__file__).with_name("inside") / "import_modules.py"
_SECONDS = 120
"""What one import may take: a framework's first takes half a minute on a slow disk."""
_LONGEST = 300
_ERROR = re.compile(r"(?:.*^Traceback \(most.*?^(?! ))?([^\n]+)\n?(.*)", re.DOTALL | re.MULTILINE)
"""The last exception that was printed, and what was printed after it: how to go on."""
_LIBRARY = re.compile(r"\w+: (?:\S*/)?(\S+\.so[.0-9]*): cannot open shared object file.*")
_DEVICE = re.compile(
    r"Found no NVIDIA driver|No (CUDA|HIP|XPU) (GPUs|devices)|no (CUDA|ROCm)-capable device"
    r"|CUDA driver version is insufficient|CUDA Setup failed|compiled without GPU support"
    r"|Torch not compiled with CUDA|0 active drivers"
    r"|lib(cuda|nvidia-ml|nvcuvid|ze_loader|amdhip64|hsa-runtime64)\.so[.0-9]*: cannot open"
)
"""What frameworks and packages (Triton, bitsandbytes) say where a GPU or its driver is missing."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of the import of a module."""

    module: str
    status: Literal["passed", "failed", "skipped"]
    package: str = ""
    """The package of it that the project requires; empty if only its code imports the module."""
    detail: str = ""


class _Result(Struct, frozen=True):
    """What the environment says of one module; nothing of it is trusted."""

    module: str
    package: str
    code: int
    errors: str


def tried(build: Built) -> tuple[Outcome, ...]:
    """Import the modules in the project's environment; raise `VerifyError` if that fails as such.

    Outside of a project there are none.
    """
    settings = build.settings
    environment = build.environment
    project = variants.of_project(settings)
    if project is None or settings.project is None:
        return ()
    files = (*repository.files(settings.project),)
    programs = repository.install_hints(settings.project, files).programs
    uses = code.imports(settings.project, files, programs, project.contents.read_from)
    wheels = {file.name for file in environment.target.of_kind("wheel")}
    asked = {
        "modules": [module for module, use in uses.items() if use.at_start],
        "packages": sorted(wheels.intersection(map(distribution, build.profile.requirements))),
        "seconds": _SECONDS,
    }
    words = ("python", "-I", "-c", _SCRIPT.read_text(encoding="utf-8"), json.dumps(asked))
    access = replace(hooked(of_project(settings), settings, environment.plan), is_read=True)
    results: list[_Result] = []

    def start(argv: Sequence[str], values: Mapping[str, str]) -> int:
        done = process.run(argv, env=values, timeout=TIMEOUT_SECONDS)
        try:
            results.extend(decoding.convert(msgspec.json.decode(done.stdout), list[_Result]))
        except msgspec.MsgspecError as error:
            why = printable(done.last_words, _LONGEST)
            raise VerifyError(f"imports could not be tried: {why}") from error
        return done.returncode

    with build.progress.task("import what the project imports"):
        environment.become(words, os.environ, access, start)
    return tuple(map(_outcome, results))


def verdict(outcomes: Sequence[Outcome]) -> Literal["passed", "warning", "failed"]:
    """Return `failed` if a package that is required failed, `warning` for any other import."""
    failed = [each.package for each in outcomes if each.status == "failed"]
    if any(failed):
        return "failed"
    return "warning" if failed else "passed"


def sentence(outcomes: Sequence[Outcome]) -> str:
    """Return how many imports succeeded, and what became of the others."""
    statuses = [each.status for each in outcomes]
    passed = statuses.count("passed")
    others = [f"{each.module}: {each.detail}" for each in outcomes if each.detail]
    return "; ".join([f"{passed} of {passed + statuses.count('failed')}", *others])


def _outcome(result: _Result) -> Outcome:
    status: Literal["passed", "failed", "skipped"] = "passed"
    detail = ""
    printed = _ERROR.fullmatch(result.errors.strip() or f"it ended with code {result.code}")
    if result.code and _DEVICE.search(result.errors):
        status = "skipped"
        detail = "not tried here, since it needs a device"
    elif result.code and printed:
        status = "failed"
        detail = " ".join([_LIBRARY.sub(r"\1 is missing", printed[1]), *printed[2].split()])
    return Outcome(
        module=printable(result.module, _LONGEST),
        status=status,
        package=printable(result.package, _LONGEST),
        detail=printable(detail, _LONGEST),
    )
