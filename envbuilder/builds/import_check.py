"""Import the modules that the project imports or requires, in its built environment.

Each module is imported in a separate process, in the same way as a command in the environment would
import it. A module that cannot be imported only because this machine lacks a device does not count
as failed.
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
from envbuilder.core.errors import VerifyError, clipped, printable
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.requirements import distribution
from envbuilder.project import code, repository, variants

if TYPE_CHECKING:
    from envbuilder.builds.request import Built

_SCRIPT = Path(__file__).with_name("inside") / "import_modules.py"
_SECONDS = 120
"""Timeout of each import in seconds. A framework's first import can take 30 s on a slow disk."""
_LONGEST = 500
_BEFORE = re.compile(r".*^Traceback \(most.*?^(?! )", re.DOTALL | re.MULTILINE)
"""Pattern that matches all output before the last exception. The text after it may contain
advice."""
_LIBRARY = re.compile(
    r"\w+: (?:\S*/)?(\S+\.so[.0-9]*): cannot open shared object file: No such file or directory"
)
_DEVICE = re.compile(
    r"Found no NVIDIA driver|No (CUDA|HIP|XPU) (GPUs|devices)|no (CUDA|ROCm)-capable device"
    r"|CUDA driver version is insufficient|CUDA Setup failed|compiled without GPU support"
    r"|Torch not compiled with CUDA|0 active drivers"
    r"|lib(cuda|nvidia-ml|nvcuvid|ze_loader|amdhip64|hsa-runtime64)\.so[.0-9]*: cannot open"
)
"""Pattern that matches messages from frameworks and packages (Triton, bitsandbytes) about a missing
GPU or driver."""


class Outcome(Struct, frozen=True):
    """The overall result of importing a project's modules."""

    status: Literal["passed", "warning", "failed"]
    """`failed` if a package that the project requires cannot be imported. `warning` if only other
    modules cannot be imported."""
    detail: str
    """The number of successful imports, and each distinct error with the modules whose import
    raised it."""


class _Result(Struct, frozen=True):
    """The result that the environment reports for a single module. It is untrusted input."""

    module: str
    package: str
    code: int
    errors: str


def tried(build: Built, *, has_trained: bool = False) -> Outcome | None:
    """Import the project's modules in its environment and return the outcome.

    Return None if there is no project, or if the project imports nothing. If `has_trained` is true,
    skip the framework, because the environment has just used it. Raise `VerifyError` if no import
    can be tried.
    """
    settings = build.settings
    environment = build.environment
    project = variants.of_project(settings)
    if project is None or settings.project is None:
        return None
    files = (*repository.files(settings.project),)
    programs = repository.install_hints(settings.project, files).programs
    uses = code.imports(settings.project, files, programs, project.contents.read_from)
    wheels = {file.name for file in environment.target.of_kind("wheel")}
    required = wheels.intersection(map(distribution, build.profile.requirements))
    if has_trained:
        required -= FRAMEWORKS[build.profile.framework].names
    modules = [module for module, use in uses.items() if use.at_start]
    if not modules and not required:
        return None
    asked = {
        "modules": modules,
        "packages": sorted(required),
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
            reason = printable(done.last_words, _LONGEST)
            raise VerifyError(f"the imports cannot be checked: {reason}") from error
        return done.returncode

    with build.progress.task("try the project's imports"):
        environment.become(words, os.environ, access, start)
    return judged(results)


def judged(results: Sequence[_Result]) -> Outcome:
    """Return the overall outcome of the imports, not counting those that need a missing device."""
    passed = 0
    failed = 0
    parts: dict[str, list[str]] = {}
    status: Literal["passed", "warning", "failed"] = "passed"
    for result in results:
        if not result.code:
            passed += 1
            continue
        problem = "not tried, because it needs a device"
        if not _DEVICE.search(result.errors):
            failed += 1
            if status != "failed":
                status = "failed" if result.package else "warning"
            text = _BEFORE.sub("", result.errors).strip().replace("\n", ". ", 1)
            problem = " ".join(_LIBRARY.sub(r"\1 is missing", text).split()) or str(result.code)
        parts.setdefault(problem, []).append(result.module)
    each_once = (clipped(f"{', '.join(m)}: {reason}", _LONGEST) for reason, m in parts.items())
    whole = "; ".join([f"{passed} of {passed + failed}", *each_once])
    return Outcome(status, printable(whole, len(whole)))
