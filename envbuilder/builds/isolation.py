"""Isolate a verification from the caller's variables, and check where its code came from.

The caller's variables can make other code shadow an environment's code, for example after loading
modules on an HPC machine, sourcing ROS or activating another environment. `verify` passes only
allow-listed variables to its payload. The payload reports where its code came from, and this report
is compared with the build. `run` and `shell` leave the user's variables unchanged, but warn about
variables that shadow the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envbuilder.builds import conventions
from envbuilder.core.errors import EnvbuilderError, VerifyError, first, printable
from envbuilder.host.accelerators import of_gpus
from envbuilder.payload.start import DRIVER_FOLDERS, INJECTING, Start, below, guarded
from envbuilder.profiles.frameworks import FRAMEWORKS

_NAMES = frozenset(
    {
        # the user's language
        "LANG",
        "LANGUAGE",
        "TZ",
        "__CF_USER_TEXT_ENCODING",
        # the user and the terminal
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "PATH",
        # scratch folders
        "TMPDIR",
        "TMP",
        "TEMP",
        "XDG_RUNTIME_DIR",
        "XDG_CACHE_HOME",
        # limits of threads
        "OMP_NUM_THREADS",
        "OMP_THREAD_LIMIT",
        "OMP_DYNAMIC",
        "OMP_MAX_ACTIVE_LEVELS",
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "OMP_WAIT_POLICY",
        "OMP_STACKSIZE",
        "OMP_SCHEDULE",
        "GOMP_CPU_AFFINITY",
        "GOMP_SPINCOUNT",
        "KMP_AFFINITY",
        "KMP_BLOCKTIME",
        "MKL_NUM_THREADS",
        "MKL_DYNAMIC",
        "OPENBLAS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        # the network between nodes
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_FAMILY",
        # the compiler that torch.compile calls
        "CC",
        "CXX",
        "SDKROOT",
        "DEVELOPER_DIR",
    }
)
"""The caller's variables that are passed to the payload, grouped by reason.

`payload_environment` adds the variables that select devices.
"""
_PREFIXES = ("LC_", "NCCL_IB_")
"""Prefixes of other variables that are also passed to the payload."""
_CLEARED = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "PYTHONPYCACHEPREFIX",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "PYTHONWARNINGS",
    "PYTHONBREAKPOINT",
    "PYTHONINSPECT",
    "PYTHONOPTIMIZE",
    "BASH_ENV",
    "ENV",
    *sorted(INJECTING),
)
"""Variables to set to an empty value in a container, because the image or the engine's settings may
have set them."""
_HOOKS = frozenset({"sitecustomize", "usercustomize"})
"""Modules that every interpreter imports at startup."""


def payload_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that are passed to the payload.

    The profile's variables are added later.
    """
    names = {*_NAMES}
    prefixes = [*_PREFIXES]
    for row in of_gpus():
        names |= {*row.choosing, *row.numbering, *row.passed}
        if row.disguise:
            prefixes.append(row.disguise)
    allowed = {k: v for k, v in environ.items() if k in names or k.startswith(tuple(prefixes))}
    return allowed | _with_drivers(environ)


def _with_drivers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping that limits `LD_LIBRARY_PATH` to its folders that contain drivers.

    The mapping is empty if there are no such folders.
    """
    folders = environ.get("LD_LIBRARY_PATH", "").split(":")
    drivers = ":".join(dict.fromkeys(filter(_is_of_driver, folders)))
    return {"LD_LIBRARY_PATH": drivers} if drivers else {}


def _is_of_driver(folder: str) -> bool:
    return any(below(folder, drivers) for drivers in DRIVER_FOLDERS)


def left_out(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the caller's variables that are withheld because they can load code.

    The names are sorted.
    """
    passed = payload_environment(environ)
    lost = [name for name, value in guarded(environ).items() if value != passed.get(name)]
    if environ.get("BASH_ENV"):
        lost.append("BASH_ENV")
    return tuple(sorted({*lost}))


def notes(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield notes about the caller's variables, to be printed before a verification."""
    if lost := left_out(environ):
        yield f"variables not passed to the verification: {', '.join(map(printable, lost))}"
    for name in sorted(environ):
        for row in of_gpus():
            if row.disguise and name.startswith(row.disguise) and environ[name]:
                yield (
                    f"{printable(name)}={printable(environ[name])} makes {row.brand}'s driver"
                    " treat a GPU as another model, so verification on that GPU fails"
                )


def python(executable: str, bytecode: str = "") -> tuple[str, ...]:
    """Return the command that starts an isolated interpreter.

    `bytecode` is a separate folder for bytecode. If it is empty, the interpreter uses its default
    `__pycache__` folders. An image needs no separate folder, because its digest covers its
    bytecode.
    """
    folder = ("-X", f"pycache_prefix={bytecode}") if bytecode else ()
    return (executable, "-I", *folder)


def container_variables(
    inherited: Iterable[str], profile_variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to set in a container so that only the profile's variables load code.

    `inherited` contains the image's own variables, in the form `NAME=VALUE`.
    """
    image = dict(pair.split("=", 1) for pair in inherited if "=" in pair)
    cleared = dict.fromkeys((*_CLEARED, *guarded(image)), "")
    return cleared | _with_drivers(image) | guarded(profile_variables)


def container_start(variables: Mapping[str, str]) -> Start:
    """Return a description of how an image's payload is started, for its `--promise` option."""
    return Start(
        as_found=False,
        prefix=conventions.PREFIX,
        executable=f"{conventions.PREFIX}/bin/python",
        variables=guarded(variables),
    )


def differences(report: Mapping[str, Any], artifact: Mapping[str, Any], *, as_found: bool) -> str:
    """Return the reason why a report does not describe the artifact, or an empty string if it does.

    `artifact` describes the artifact to verify: its kind and, if it has one, its path.
    """
    origins = report.get("origins")
    if not isinstance(origins, dict):
        return "the report does not state where its code came from"
    if bool(origins.get("as_found")) != as_found:
        return "the payload was not started in the requested isolation mode"
    if as_found:
        return ""
    expected = conventions.PREFIX if artifact["kind"] == "image" else str(artifact["ref"])
    if artifact["kind"] == "interpreter":
        actual = str(origins.get("executable"))
        is_same = os.path.realpath(actual) == os.path.realpath(expected)
        roots = [str(origins.get("prefix")), str(origins.get("base_prefix"))]
    else:
        actual = str(origins.get("prefix"))
        is_same = below(actual, expected)
        roots = [expected]
    if not is_same:
        return f"the report covers {printable(actual)}, not {expected}"
    framework = origins.get("framework")
    if not isinstance(framework, str) or not any(below(framework, root) for root in roots):
        return f"the framework was imported from {printable(str(framework))}, not from {roots[0]}"
    return ""


def require(report: Mapping[str, Any], artifact: Mapping[str, Any], *, as_found: bool) -> None:
    """Raise `VerifyError` if a report with the status `passed` does not describe the artifact."""
    problem = differences(report, artifact, as_found=as_found)
    if report.get("status") == "passed" and problem:
        raise VerifyError(f"the report cannot be trusted: {problem}")


def unreached(
    report: Mapping[str, Any], executable: Path | None, environ: Mapping[str, str]
) -> list[EnvbuilderError]:
    """Return a list with one error if the interpreter itself does not contain the framework.

    Otherwise, return an empty list. The framework may be in the user's site-packages, or in a
    folder specified by a variable that is not passed to the verification. Therefore, the error's
    hint suggests `--inherit-environment`.
    """
    reasons = " ".join(map(str, report.get("reasons") or ()))
    missing = re.search(rf"No module named '?({'|'.join(FRAMEWORKS)})\b", reasons)
    if executable is None or missing is None:
        return []
    lost = [name for name in left_out(environ) if name.startswith(("PYTHON", "LD_", "DYLD_"))]
    also = f", nor are folders in {', '.join(lost)}" if lost else ""
    return [
        VerifyError(
            f"{executable} has no {missing[1]} of its own, and the user's packages are not"
            f" used{also}",
            f"If {missing[1]} is installed there, add --inherit-environment. The verdict then says"
            " that the environment was used as found.",
        )
    ]


def _entries(folder: str) -> Iterable[str]:
    """Return the names of the entries in a folder, or nothing if the folder cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (names)
    except (OSError, ValueError):
        return ()


def shadowing(
    environ: Mapping[str, str], entries: Callable[[str], Iterable[str]] = _entries
) -> Iterator[str]:
    """Yield a warning for each variable or folder that shadows the environment's code.

    `entries` is a function that returns the names of the entries in a folder.
    """
    for folder in _folders(environ, "PYTHONPATH"):
        from envbuilder.payload import origins

        names = [*entries(folder)]
        # Packages, files, extension modules.
        modules = {n.partition(".")[0] for n in names if n.endswith((".py", ".pyc", ".so"))}
        modules |= {name for name in names if "." not in name}
        if shadowed := ", ".join(sorted(modules & (origins.FRAMEWORKS | _HOOKS))):
            shown = printable(folder, 200)
            yield (
                f"PYTHONPATH: {shown} contains {shadowed}, which takes precedence over the"
                " environment's own"
            )
    if home := environ.get("PYTHONHOME"):
        shown = printable(home, 200)
        yield f"PYTHONHOME={shown} replaces Python's standard library"
    for name in ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES"):
        if environ.get(name):
            yield f"{name}={printable(environ[name], 200)} is loaded into every program"
    for folder in _folders(environ, "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        from envbuilder.payload.origins import FRAMEWORK_LIBRARY, RUNTIME_LIBRARY

        library_names = re.compile(f"{FRAMEWORK_LIBRARY.pattern}|{RUNTIME_LIBRARY.pattern}")
        matches = sorted(filter(library_names.match, entries(folder)))
        if matches and not _is_of_driver(folder):
            library = first([printable(name, 80) for name in matches], 1)
            shown = printable(folder, 200)
            yield (
                f"library path: {shown} contains {library}, which takes precedence over the"
                " environment's own"
            )


def _folders(environ: Mapping[str, str], *names: str) -> dict[str, None]:
    """Return the folders listed in path variables, as the keys of a dictionary.

    The folders are in order and without duplicates.
    """
    values: list[str] = []
    for name in names:
        values += environ.get(name, "").split(os.pathsep)
    return dict.fromkeys(filter(None, values))
