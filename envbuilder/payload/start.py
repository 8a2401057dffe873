"""How this process was started, compared with how the core promised to start it.

An isolated interpreter (``-I``) ignores ``PYTHON*``, the user's packages and the working directory.
The dynamic loader has no such option, and child processes do not inherit isolation. Therefore,
variables that inject code are compared with the promised ones, and children get the same options.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .report import PASSED, WARNING, require_none

DRIVER_FOLDERS = (
    # NVIDIA's images set LD_LIBRARY_PATH to these two; Google's clusters mount the driver here.
    "/usr/local/nvidia/lib",
    "/usr/local/nvidia/lib64",
    # NVIDIA's forward compatibility package: a newer libcuda for an older kernel driver.
    "/usr/local/cuda/compat",
    # Microsoft's documentation of GPUs in WSL: Windows puts the Linux side of its driver here.
    "/usr/lib/wsl/lib",
    # NixOS has no other folder for drivers (nixpkgs, addDriverRunpath).
    "/run/opengl-driver/lib",
    # Apptainer's --nv and --rocm bind the host's drivers here.
    "/.singularity.d/libs",
)
"""Folders that hold drivers and no part of a framework, each with its source."""

HARMLESS = frozenset(
    {
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "PYTHONNOUSERSITE",
        "PYTHONSAFEPATH",
        "PYTHONHASHSEED",
        "PYTHONIOENCODING",
        "PYTHONUTF8",
        "PYTHONCOERCECLOCALE",
        "PYTHONFAULTHANDLER",
        "PYTHONDEVMODE",
        "PYTHONLEGACYWINDOWSSTDIO",
    }
)
"""Python's variables that inject no code."""

INJECTING = frozenset(
    {
        "GLIBC_TUNABLES",
        # Libraries that runtimes load at startup: CUDA, NVTX, ROCm, OpenMP.
        "CUDA_INJECTION64_PATH",
        "NVTX_INJECTION64_PATH",
        "HSA_TOOLS_LIB",
        "OMP_TOOL_LIBRARIES",
    }
)
_GUARDED = re.compile(r"LD_[A-Z_]+|DYLD_[A-Z_]+|PYTHON[A-Z]+")


@dataclass(frozen=True)
class Start:
    """How the core promised to start this process.

    By default, nothing is promised: the process is taken as found. ``prefix`` and ``executable``
    are empty if they are unknown. ``variables`` are those that can inject code and were set on
    purpose.
    """

    as_found: bool = True
    prefix: str = ""
    executable: str = ""
    bytecode: str = ""
    variables: Dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return this promise as a value for ``--promise``."""
        return json.dumps(asdict(self))

    def require(self) -> None:
        """Raise CheckError if this process was not started as promised."""
        if not self.as_found:
            require_none(problems(self, look()))

    def isolate(self) -> None:
        """Isolate child processes in the same way, unless isolation is turned off."""
        if not self.as_found:
            isolate_children()

    def check(self) -> Tuple[str, str]:
        """Check how this process was started, and return the status and detail.

        Raise CheckError if a promise was broken.
        """
        if self.as_found:
            decisive = ", ".join(sorted(guarded(look().environ))) or "none that injects code"
            return WARNING, f"as found, not isolated; variables: {decisive}"
        self.require()
        where = "a separate folder" if self.bytecode else "the image"
        return PASSED, f"isolated; {sys.executable}, bytecode in {where}"


AS_FOUND = Start()


def parse(text: str) -> Start:
    """Parse the value of ``--promise``, as written by ``Start.text``.

    Raise ValueError for any other value.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or set(fields) != set(asdict(Start())):
        raise ValueError("not a description of a start")
    return Start(**fields)


@dataclass(frozen=True)
class ActualStart:
    """How this process was really started. ``binary`` is None if the system does not report it."""

    environ: Mapping[str, str]
    isolated: bool
    bytecode: Optional[str]
    prefix: str
    executable: str
    binary: Optional[str]


def look() -> ActualStart:
    """Inspect this process.

    Its environment variables are those with which it was started, not the current ones.
    """
    try:
        binary: Optional[str] = os.readlink("/proc/self/exe")  # noqa: PTH115 - Python 3.8
    except OSError:
        binary = None
    return ActualStart(
        environment(),
        bool(sys.flags.isolated),
        sys.pycache_prefix,
        sys.prefix,
        sys.executable,
        binary,
    )


def environment(place: Path = Path("/proc/self/environ")) -> Dict[str, str]:
    """Return the variables this process was started with.

    On a system without ``/proc``, return the current variables.
    """
    try:
        content = place.read_bytes()
    except OSError:
        return dict(os.environ)
    variables = {}
    for entry in filter(None, content.split(b"\0")):
        name, _, value = os.fsdecode(entry).partition("=")
        variables[name] = value
    return variables


def guarded(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the non-empty variables that can inject code into a process."""
    return {
        name: value
        for name, value in environ.items()
        if value and name not in HARMLESS and (name in INJECTING or _GUARDED.fullmatch(name))
    }


def problems(start: Start, actual: ActualStart) -> List[str]:
    """Return a sentence for each broken promise.

    The function is pure, except that it resolves symbolic links.
    """
    sentences = []
    if start.executable and not _same_program(start.executable, actual):
        sentences.append(
            f"{start.executable} is not the interpreter that ran: it started {actual.executable}"
            f" ({actual.binary or 'program unknown'}); name that interpreter instead"
        )
    if not actual.isolated:
        sentences.append("the interpreter is not isolated: it was started without -I")
    if start.bytecode and actual.bytecode != start.bytecode:
        sentences.append(f"bytecode is read from {actual.bytecode or 'the environment'}")
    if start.prefix and not below(actual.prefix, start.prefix):
        sentences.append(f"the interpreter's prefix is {actual.prefix}, not {start.prefix}")
    roots = [root for root in (start.prefix, actual.prefix) if root]
    for name, value in sorted(guarded(actual.environ).items()):
        if value != start.variables.get(name) and not _inside(name, value, roots):
            sentences.append(f"{name}={value} was set for the interpreter, not by the profile")
    return sentences


def _same_program(executable: str, actual: ActualStart) -> bool:
    if actual.binary is not None:
        # A script that execs an interpreter can fake its name, but not its program.
        return actual.binary == os.path.realpath(executable)
    return os.path.realpath(actual.executable) == os.path.realpath(executable)


def _inside(name: str, value: str, roots: Sequence[str]) -> bool:
    """Return whether all paths in a variable's value are in the environment or in driver folders.

    ``roots`` are the folders of the environment. Driver folders count only for ``LD_LIBRARY_PATH``.
    """
    allowed = [*roots]
    if name == "LD_LIBRARY_PATH":
        allowed += DRIVER_FOLDERS
    for entry in filter(None, re.split("[: ]+", value)):
        if not any(below(entry, root) for root in allowed):
            return False
    return True


def below(path: str, root: str) -> bool:
    """Return whether an absolute path is ``root`` or below it.

    The paths are compared both as written and with symbolic links resolved.
    """
    if not path.startswith(os.sep):
        return False
    pairs = zip(_forms(path), _forms(root))  # noqa: B905 - Python 3.8
    return any((form + os.sep).startswith(other.rstrip(os.sep) + os.sep) for form, other in pairs)


@lru_cache(maxsize=None)
def _forms(path: str) -> Tuple[str, str]:
    return os.path.normpath(path), os.path.realpath(path)


def options() -> List[str]:
    """Return the Python options that isolate a child process like this one.

    The list is empty if this process is not isolated.
    """
    if not sys.flags.isolated:
        return []
    cache = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    return ["-I", *cache]


def python(*arguments: str) -> List[str]:
    """Return a command that runs this interpreter, as isolated as this process is."""
    return [sys.executable, *options(), *arguments]


def isolate_children() -> None:
    """Give every child process that runs this interpreter the options that isolate this process.

    This applies to whatever library starts the child. DataLoader's workers, multiprocessing's
    servers and Inductor's compile workers build their commands themselves. multiprocessing repeats
    ``-I`` but not ``-X pycache_prefix``; the others repeat neither.
    """
    added = options()
    if not added:
        return
    from multiprocessing import util

    internals: Any = subprocess
    flags = internals._args_from_interpreter_flags

    def repeated() -> List[str]:
        return [*flags(), *added[1:]]

    internals._args_from_interpreter_flags = repeated
    vars(util)["_args_from_interpreter_flags"] = repeated
    begin: Any = subprocess.Popen.__init__

    def start(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        begin(self, isolated(args, sys.executable, added), *rest, **named)

    vars(subprocess)["Popen"].__init__ = start


def isolated(command: Any, executable: str, added: Sequence[str]) -> Any:
    """Return the command. If it is a list that starts ``executable``, the options are inserted.

    ``added`` are these options.
    """
    if not isinstance(command, (list, tuple)) or not command:
        return command
    first = command[0]
    if not isinstance(first, (str, os.PathLike)) or os.fspath(first) != executable:
        return command
    if list(command[1 : 1 + len(added)]) == list(added):
        return command
    return [first, *added, *command[1:]]
