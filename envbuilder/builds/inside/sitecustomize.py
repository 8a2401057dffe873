"""After an error about a missing module, library or compiler, print how to get it.

`envbuilder run` puts a copy of this file on PYTHONPATH, so that each Python that the command starts
imports it first. It reads and changes no output: Python prints the traceback as usual, and then
this prints advice. Another `sitecustomize` is imported, too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FACTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts.json")
"""Facts about the project, in a file beside this one: see `project_folder.lay_hook`."""
_GONE = {"asynchat", "asyncore", "cgi", "distutils", "imp", "lib2to3", "pipes", "smtpd"}
"""Modules that Python no longer has; no package of that name provides them."""
_PASSED_OVER = {"node_modules", "site-packages", "__pycache__"}
_MOST_FOLDERS = 1000
"""Maximum number of the user's project folders that are searched for a module."""
_before = sys.excepthook


def advice(name: str | None, facts: dict[str, Any]) -> str:
    """Return advice on a module that cannot be found; empty if there is none."""
    from importlib.util import find_spec

    top = (name or "").partition(".")[0]
    known = _GONE.union(sys.builtin_module_names, getattr(sys, "stdlib_module_names", ()))
    if not top.isidentifier() or top.startswith("_") or top in known or find_spec(top):
        return ""
    # A container that has the project at another path works in it.
    project = facts["project"] if os.path.isdir(facts["project"]) else os.getcwd()
    if folder := _folder_of(top, project):
        keys = f"python_path: [{folder}] or install_project: true"
        return f"{top} is in the project: write {keys} into envbuilder.yaml"
    module = top.replace("_", "-").lower()
    package = facts["packages"].get(module, "")
    for left_out in (package, module):
        if left_out in facts["excluded"]:
            advice_text = f"exclude: in envbuilder.yaml{facts['excluded'][left_out]}"
            again = "To have it, remove it there, and lock again:\n  envbuilder lock"
            return f"{left_out} is left out by {advice_text}. {again}"
    if package in facts["locked"]:
        return ""
    if not package:
        return f"{top} is in no requirement, and no table says which package brings it"
    quote = "'" if "<" in package else ""
    first = ""
    if package in facts["sources"]:
        first = (
            f". If no index has a wheel of it, write build_from_source: [{package}] into"
            " envbuilder.yaml first, so that its own code may run to build it"
        )
    return f"{top} is in no requirement{first}:\n  {facts['add']} {quote}{package}{quote}"


def library_advice(text: str, facts: dict[str, Any]) -> str:
    """Return what provides the library or compiler that an error names; empty if unknown."""
    import re

    lacking = re.search(
        r"([^/\s]+\.so[.0-9]*): cannot open|find C compiler|working C\+\+ comp", text
    )
    return facts["libraries"].get(lacking[1] or "g++", "") if lacking else ""


def _folder_of(module: str, project: str) -> str:
    """Return the folder of the project's own module, from the project; empty if it has none."""
    for folder in (".", "src"):
        path = os.path.join(project, folder, module)
        if os.path.isfile(f"{path}.py") or os.path.isdir(path):
            return folder
    for count, (folder, below, files) in enumerate(os.walk(project)):
        if f"{module}.py" in files or os.path.isfile(os.path.join(folder, module, "__init__.py")):
            return os.path.relpath(folder, project)
        below[:] = sorted(n for n in below if n[:1] != "." and n not in _PASSED_OVER)
        if count == _MOST_FOLDERS:
            break
    return ""


def _hook(kind, error, trace):  # type: ignore[no-untyped-def]  # as Python calls it
    _before(kind, error, trace)
    try:
        if isinstance(error, Exception):
            import json

            with open(FACTS, encoding="utf-8") as file:
                facts = json.load(file)
            if isinstance(error, ModuleNotFoundError):
                text = advice(error.name, facts)
            else:
                text = library_advice(str(error), facts)
            if text:
                print(text, file=sys.stderr)
    except Exception:  # the traceback is there, and nothing here may add one
        pass


def _share_cores() -> None:
    """Set envbuilder's number of threads for libraries, invisible to Python programs.

    Launchers of several processes (torchrun, accelerate) divide the cores only if it is not set. A
    process bound to some CPUs, as by mpirun, uses no more threads than these.
    """
    chosen = os.environ.get("ENVBUILDER_THREADS", "")
    if chosen.isdigit() and (os.environ.get("OMP_NUM_THREADS") or chosen) == chosen:
        os.environ.pop("OMP_NUM_THREADS", None)
        allowed = getattr(os, "sched_getaffinity", lambda process: range(int(chosen)))(0)
        os.putenv("OMP_NUM_THREADS", str(min(int(chosen), len(allowed))))


def _give_way() -> None:
    """Import the module that this file shadows, and remove this file's folder from the path."""
    here = os.path.dirname(os.path.abspath(__file__))
    this = sys.modules.pop(__name__)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    try:
        __import__(__name__)
    except ImportError:
        sys.modules[__name__] = this


if __name__ == "sitecustomize":
    # Another Python, such as the machine's own, gets its packages elsewhere.
    environment = os.environ.get("VIRTUAL_ENV")
    if not environment or os.path.realpath(environment) == os.path.realpath(sys.prefix):
        sys.excepthook = _hook
    _share_cores()
    _give_way()
