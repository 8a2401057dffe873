"""How this process was started, held against how the core says that it starts it.

An isolated interpreter (``-I``) ignores ``PYTHON*``, the user's packages and the working folder.
The dynamic loader has no such switch, and neither is passed on to a child by itself: so variables
that bring code are compared with what was promised, and children get the same options.
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

from .report import PASSED, WARNING, CheckError

DRIVER_FOLDERS = (
    # NVIDIA's images set LD_LIBRARY_PATH to these two; Google's clusters mount the driver there.
    "/usr/local/nvidia/lib",
    "/usr/local/nvidia/lib64",
    # NVIDIA's forward compatibility package: a newer libcuda for an older kernel driver.
    "/usr/local/cuda/compat",
    # Microsoft's documentation of GPUs in WSL: where Windows puts its driver's Linux side.
    "/usr/lib/wsl/lib",
    # NixOS has no other place for drivers; nixpkgs, addDriverRunpath.
    "/run/opengl-driver/lib",
    # Apptainer's --nv and --rocm bind the host's drivers there.
    "/.singularity.d/libs",
)
"""Folders that hold drivers and nothing of a framework, with who says so."""

HARMLESS = frozenset(
    {
        *("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH"),
        *("PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE"),
        *("PYTHONFAULTHANDLER", "PYTHONDEVMODE", "PYTHONLEGACYWINDOWSSTDIO"),
    }
)
"""Variables of Python that bring no code of their own."""

INJECTING = frozenset(
    {
        "GLIBC_TUNABLES",
        # Libraries that runtimes load when they start: CUDA, NVTX, ROCm, OpenMP.
        *("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "HSA_TOOLS_LIB", "OMP_TOOL_LIBRARIES"),
    }
)
_GUARDED = re.compile(r"LD_[A-Z_]+|DYLD_[A-Z_]+|PYTHON[A-Z]+")


@dataclass(frozen=True)
class Start:
    """What the core promised. By default nothing: the process is taken as it is found.

    ``prefix`` and ``executable`` are empty where they are not known; ``variables`` are those that
    bring code and were set on purpose.
    """

    as_found: bool = True
    prefix: str = ""
    executable: str = ""
    bytecode: str = ""
    variables: Dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The value of ``--promise``."""
        return json.dumps(asdict(self))

    def require(self) -> None:
        """CheckError where this process was started in another way."""
        found = [] if self.as_found else problems(self, look())
        if found:
            raise CheckError("; ".join(found))

    def isolate(self) -> None:
        """Isolate children as this process is, unless everything is taken as it is found."""
        if not self.as_found:
            isolate_children()

    def check(self) -> Tuple[str, str]:
        """The check: status and detail."""
        if self.as_found:
            decisive = ", ".join(sorted(guarded(look().environ))) or "none that brings code"
            return WARNING, f"as found, not isolated; variables: {decisive}"
        self.require()
        return PASSED, f"isolated; {sys.executable}, bytecode of its own"


AS_FOUND = Start()


def parse(text: str) -> Start:
    """``--promise``; ValueError for anything else than what ``Start.text`` gives."""
    given = json.loads(text)
    if not isinstance(given, dict) or set(given) != set(asdict(Start())):
        raise ValueError("not a description of a start")
    return Start(**given)


@dataclass(frozen=True)
class Seen:
    """How this process really was started. ``binary`` is None where the system does not say."""

    environ: Mapping[str, str]
    isolated: bool
    bytecode: Optional[str]
    prefix: str
    executable: str
    binary: Optional[str]


def look() -> Seen:
    """Look at this process; its environment as it was when it started, not as it is now."""
    try:
        binary: Optional[str] = str(Path("/proc/self/exe").readlink())
    except OSError:
        binary = None
    return Seen(
        environment(),
        bool(sys.flags.isolated),
        sys.pycache_prefix,
        sys.prefix,
        sys.executable,
        binary,
    )


def environment(place: Path = Path("/proc/self/environ")) -> Dict[str, str]:
    """The variables that this process was started with; the present ones without ``/proc``."""
    try:
        content = place.read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def guarded(environ: Mapping[str, str]) -> Dict[str, str]:
    """Of some variables those that are set and can bring code into a process."""
    return {
        name: value
        for name, value in environ.items()
        if value
        and name not in HARMLESS
        and (name in INJECTING or _GUARDED.fullmatch(name) is not None)
    }


def problems(start: Start, seen: Seen) -> List[str]:
    """Sentences on what is not as promised; pure but for resolving links of paths."""
    found = []
    if start.executable and not _same_program(start.executable, seen):
        found.append(
            f"{start.executable} is not the interpreter that ran: it started {seen.executable}"
            f" ({seen.binary or 'program unknown'}); name that one"
        )
    if not seen.isolated:
        found.append("the interpreter is not isolated: it was started without -I")
    if start.bytecode and seen.bytecode != start.bytecode:
        found.append(f"bytecode is read from {seen.bytecode or 'the environment'}")
    if start.prefix and not below(seen.prefix, start.prefix):
        found.append(f"the interpreter's prefix is {seen.prefix}, not {start.prefix}")
    roots = [root for root in (start.prefix, seen.prefix) if root]
    for name, value in sorted(guarded(seen.environ).items()):
        if value != start.variables.get(name) and not _inside(name, value, roots):
            found.append(f"{name}={value} was set for the interpreter, not by the profile")
    return found


def _same_program(executable: str, seen: Seen) -> bool:
    if seen.binary is not None:
        # A script that becomes an interpreter can give it any name, but not any program.
        return seen.binary == os.path.realpath(executable)
    return os.path.realpath(seen.executable) == os.path.realpath(executable)


def _inside(name: str, value: str, roots: Sequence[str]) -> bool:
    """Whether a variable names nothing but places of the environment, or of drivers."""
    entries = [entry for entry in re.split("[: ]+", value) if entry]
    allowed = [*roots, *(DRIVER_FOLDERS if name == "LD_LIBRARY_PATH" else ())]
    return all(any(below(entry, root) for root in allowed) for entry in entries)


def below(path: str, root: str) -> bool:
    """Whether an absolute path is a folder, or in it, as written or with links resolved."""
    if not path.startswith(os.sep):
        return False
    pairs = zip(_forms(path), _forms(root))  # noqa: B905 - Python 3.9
    return any((one + os.sep).startswith(other.rstrip(os.sep) + os.sep) for one, other in pairs)


@lru_cache(maxsize=None)
def _forms(path: str) -> Tuple[str, str]:
    return os.path.normpath(path), os.path.realpath(path)


def options() -> List[str]:
    """Options of Python with which a child is isolated as this process is; none where it is not."""
    if not sys.flags.isolated:
        return []
    return ["-I", *(["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else [])]


def python(*arguments: str) -> List[str]:
    """A command for this interpreter, isolated as this process is."""
    return [sys.executable, *options(), *arguments]


def isolate_children() -> None:
    """Give every child that is this interpreter the same options, whichever library starts it.

    DataLoader's workers, multiprocessing's servers and Inductor's compile workers build their
    commands themselves. multiprocessing repeats ``-I`` but not ``-X pycache_prefix``, others
    neither.
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
    """A command with the options put in, where it is a list that starts this interpreter."""
    if not isinstance(command, (list, tuple)) or not command:
        return command
    first = command[0]
    if not isinstance(first, (str, os.PathLike)) or os.fspath(first) != executable:
        return command
    if list(command[1 : 1 + len(added)]) == list(added):
        return command
    return [first, *added, *command[1:]]


def require_like(isolated: bool, bytecode: Optional[str]) -> None:
    """RuntimeError in a worker that was not started as its parent was."""
    if bool(sys.flags.isolated) != isolated or sys.pycache_prefix != bytecode:
        raise RuntimeError("a worker was not started in an isolated interpreter as its parent was")
