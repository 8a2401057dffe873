"""After an error of a missing module, print which command adds its package.

`envbuilder run` puts a copy of this file on PYTHONPATH, so that each Python that the command starts
imports it first. It reads no output and changes none: the traceback is printed as ever, and then
one line. Another `sitecustomize` is imported, too.
"""

from __future__ import annotations

import os
import sys

PACKAGES: dict[str, str] = {}
"""Module, as packages are named → the one that brings it, if that has another name."""
PROJECT = ""
"""The project's folder. A container that has it at another path works in it."""
_GONE = {"asynchat", "asyncore", "cgi", "distutils", "imp", "lib2to3", "pipes", "smtpd"}
"""Modules that Python no longer has, which no package of that name brings."""
_before = sys.excepthook


def advice(name: str | None, project: str) -> str:
    """Return what to do about a module that cannot be found; empty if that is not known."""
    from importlib.util import find_spec

    top = (name or "").partition(".")[0]
    known = _GONE.union(sys.builtin_module_names, getattr(sys, "stdlib_module_names", ()))
    if not top.isidentifier() or top.startswith("_") or top in known or find_spec(top):
        return ""
    for folder in (".", "src"):
        place = os.path.join(project, folder, top)
        if os.path.isfile(f"{place}.py") or os.path.isdir(place):
            keys = f"python_path: [{folder}] or install_project: true"
            return f"{top} is in the project: write {keys} into envbuilder.yaml"
    package = top.replace("_", "-")
    return f"{top} is in no requirement: envbuilder add {PACKAGES.get(package.lower(), package)}"


def _hook(kind, error, trace):  # type: ignore[no-untyped-def]  # as Python calls it
    _before(kind, error, trace)
    try:
        if isinstance(error, ModuleNotFoundError):
            project = PROJECT if os.path.isdir(PROJECT) else os.getcwd()
            if text := advice(error.name, project):
                print(text, file=sys.stderr)
    except Exception:  # the traceback is there, and nothing here may add one
        pass


def _give_way() -> None:
    """Import what would have been imported instead of this file, which is left on no path."""
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
    _give_way()
