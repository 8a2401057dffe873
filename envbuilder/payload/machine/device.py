"""An accelerator as torch sees it: importing torch, checking the device, and waiting for it.

ROCm builds of torch 2.13 hang while they are imported on a machine without ``/dev/kfd``
(pytorch#189110). Therefore the device nodes are examined first, with the standard library alone,
and every import has a time limit.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import stat
from pathlib import Path
from typing import Any, Mapping

from ..report import CheckError
from .accelerators import (
    ACCELERATORS,
    Accelerator,
    architectures,
    build_of,
    compiled_build,
    device_of,
    stated_build,
)

SECONDS = 600
"""Limit of an import; from a cold disk, or over a network, that of a large build takes a minute."""

PHASE = "import"
"""The phase of a run in which that happens; if it was the last one, that is what hung."""

HUNG = "Timeout ("
"""What the watchdog writes to stderr before it ends the process (``faulthandler``)."""

_STDERR = 2


NO_KERNEL = (
    "no kernel image is available",
    "no binary for gpu",
    "nobinaryforgpu",
    "invalid device function",
    "device kernel image is invalid",
    "invalidimage",
)
"""Phrases, in lower case, with which CUDA and HIP report that a build lacks a GPU's kernels."""


def torch_for(accelerator: str) -> Any:
    """Import torch and return it.

    Raise CheckError without importing it if a missing device node could make the import hang.
    """
    require_nodes(accelerator)
    return limited("torch")


def limited(name: str) -> Any:
    """Import and return a module. End this process if the import takes longer than the limit.

    A thread could not enforce the limit, because an import that hangs may hold the interpreter's
    lock.
    """
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=_STDERR)
    try:
        return importlib.import_module(name)
    finally:
        faulthandler.cancel_dump_traceback_later()


def require_nodes(accelerator: str) -> None:
    """Raise CheckError if a device node is missing that the accelerator or this torch needs."""
    missing = obstacle(accelerator)
    if missing:
        raise CheckError(missing)


def obstacle(accelerator: str) -> str:
    """Return the message of the error that ``require_nodes`` raises, or "" if it raises none."""
    for row in ACCELERATORS.values():
        if row.nodes and (row.name == accelerator or _installed(row)):
            problem = next(filter(None, map(_problem, map(Path, row.nodes))), "")
            if problem:
                return (
                    f"{problem}; torch is not imported, since a build for {row.name} may then hang"
                    f" for ever. {row.remedy}"
                )
    return ""


def _installed(row: Accelerator) -> bool:
    """Return whether the torch that would be imported is a build for this accelerator."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a broken installation, or a module without a spec
        return False
    origin = spec.origin if spec else None
    return origin is not None and (Path(origin).parent / row.part).exists()


def _problem(node: Path) -> str:
    try:
        status = node.stat()
    except OSError as error:
        return f"{node} cannot be used ({error.strerror or 'not found'})"
    if not stat.S_ISCHR(status.st_mode):
        return f"{node} is no device"
    if not os.access(node, os.R_OK | os.W_OK):
        return f"{node} may not be opened by this user; its group is {status.st_gid}"
    return ""


# ---- what was imported


def synchronize(torch: Any, accelerator: str) -> None:
    """Wait until the device has finished. Without this, timings would measure only the queueing."""
    if accelerator != "cpu":
        ACCELERATORS[accelerator].module(torch).synchronize()


def count(accelerator: str) -> int:
    """Import torch and return how many devices of this accelerator it sees.

    Return 0 if this build of torch does not drive the accelerator.
    """
    torch = torch_for(accelerator)
    row = ACCELERATORS[accelerator]
    return row.count(torch) if row.drives(torch) else 0


def require_build(torch: Any, accelerator: str) -> str:
    """Return a sentence describing the build.

    Raise CheckError if the build can never drive the accelerator, or if the version specifies a
    different build from the one that was compiled in.
    """
    version = str(torch.__version__)
    build = build_of(torch)
    row = ACCELERATORS[accelerator]
    if row.drives(torch):
        stated = stated_build(torch)
        compiled = compiled_build(torch)
        # A patch release ("rocm7.2.1") has the libraries of its minor version.
        if stated and ".".join(stated.split(".")[:2]) != compiled:
            raise CheckError(
                f"torch {version} states a {stated} build, but it was compiled as {compiled};"
                " install it again from its index"
            )
        return f"torch {version} is a {build} build, which can drive {accelerator}"
    driven = [name for name, other in ACCELERATORS.items() if other.drives(torch)]
    raise CheckError(
        f"torch {version} is a {build} build and cannot use {accelerator}; "
        f"install {row.build}, or verify with --device {driven[-1]}"
    )


def require_arrays(torch: Any) -> None:
    """Raise CheckError if numpy is installed but torch cannot exchange arrays with it.

    Versions of torch before 2.3 were built for numpy 1. With numpy 2, they can still be imported
    and only print a warning.
    """
    if importlib.util.find_spec("numpy") is None:
        return
    numpy = limited("numpy")
    try:
        returned = torch.from_numpy(numpy.arange(3.0)).numpy().tolist()
    except Exception as error:
        returned = str(error)
    if returned != [0.0, 1.0, 2.0]:
        raise CheckError(
            f"torch {torch.__version__} does not work with numpy {numpy.__version__} ({returned}):"
            " install a numpy that it was built for, such as numpy<2"
        )


def require_usable(torch: Any, accelerator: str) -> str:
    """Check that the device computes correctly, and return a sentence about the result.

    Raise CheckError if the device does not.
    """
    row = ACCELERATORS[accelerator]
    require_undisguised(accelerator, os.environ)
    if accelerator != "cpu" and not row.available(torch):
        raise CheckError(f"no {accelerator} device can be used: {_why_not(torch, accelerator)}")
    if row.exact and row.describe(torch)["capability"] not in architectures(torch):
        raise CheckError(f"this build has no kernels for the GPU: {row.kernels(torch)}")
    size = 1 << 20
    try:
        values = torch.arange(size, dtype=torch.float32, device=row.device)
        # float32 is exact for integers below 2**24, so the result must be equal, not close.
        returned = (values * 2 + 1).to("cpu")
    except RuntimeError as error:
        kernels = row.kernels(torch)
        hint = f" ({kernels})" if kernels else ""
        raise CheckError(f"{accelerator} cannot compute: {first_line(error)}{hint}") from error
    if not torch.equal(returned, torch.arange(size, dtype=torch.float32) * 2 + 1):
        raise CheckError(f"{accelerator} returned wrong numbers for x * 2 + 1 of whole numbers")
    listed = f"; {row.kernels(torch)}" if row.exact else ""
    return f"{row.describe(torch)['name']}: allocated, computed and read back{listed}"


def without_kernel(error: BaseException) -> str:
    """Return a sentence if the error means that this build lacks a kernel, or "" otherwise."""
    text = str(error).lower().replace("_", " ")
    if not any(phrase in text for phrase in NO_KERNEL):
        return ""
    return f"a part of this build has no kernel for the GPU: {first_line(error)}"


def require_undisguised(accelerator: str, environ: Mapping[str, str]) -> None:
    """Raise CheckError if a variable makes the driver treat the device as a different one.

    Work that runs under such a variable proves nothing about the device, because it uses the
    kernels of another architecture.
    """
    prefix = ACCELERATORS[accelerator].disguises
    names = [name for name in sorted(environ) if prefix and name.startswith(prefix)]
    stated = ", ".join(f"{name}={environ[name]}" for name in names if environ[name])
    if stated:
        raise CheckError(
            f"{stated} makes the driver take the GPU for another one, so nothing that runs would"
            " prove that this GPU works; unset it"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _why_not(torch: Any, accelerator: str) -> str:
    # is_available() swallows the reason; using the device raises it.
    try:
        torch.zeros(1, device=device_of(accelerator))
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    return "torch reports it as unavailable, without a reason"
