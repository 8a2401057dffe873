"""Observe a framework once the command imports it; do nothing else.

`envbuilder watch` puts the folder of this file on PYTHONPATH, so that each Python of the command
imports it first. Any other `sitecustomize` is imported, too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

OBSERVERS = {
    "torch": "torch_",
    "jax": "jax_",
    "tensorflow": "tensorflow_",
    "keras": "tensorflow_",
    "tf_keras": "tensorflow_",
}
"""Framework → the module of this folder that observes it."""
_FOLDER = os.path.dirname(os.path.abspath(__file__))


def load(name: str) -> Any:
    """Return a module of this folder, which is on no path."""
    full_name = "_envbuilder_watch_" + name
    if full_name not in sys.modules:
        place = os.path.join(_FOLDER, name + ".py")
        spec: Any = importlib.util.spec_from_file_location(full_name, place)
        sys.modules[full_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


class _Finder:
    """Finds frameworks as all others do, and begins to observe each after its import."""

    def __init__(self) -> None:
        self.waiting = set(OBSERVERS)
        self._sought: set[str] = set()
        self.envbuilder_folders = [_FOLDER]
        """Of a command that is watched within a watched one, too."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return a framework's own spec, whose loader observes it; None for other modules.

        Libraries ask for it before they import a framework, or without doing so.
        """
        if name not in self.waiting or name in self._sought:  # another finder may ask all others
            return None
        self._sought.add(name)
        try:
            finders = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
            found = (finder.find_spec(name, path, target) for finder in finders)
            spec: Any = next((each for each in found if each is not None), None)
        finally:
            self._sought.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def observed(module: Any) -> None:
                execute(module)
                self.waiting.discard(name)
                try:
                    folders = os.pathsep.join(self.envbuilder_folders)
                    load(OBSERVERS[name]).observe(module, load, folders)
                except Exception:  # the training must not notice
                    pass

            spec.loader.exec_module = observed
        return spec


def _give_way() -> None:
    """Import what would have been imported instead of this file, which is left on no path."""
    this = sys.modules.pop(__name__)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
    try:
        __import__(__name__)
    except ImportError:
        sys.modules[__name__] = this


if __name__ == "sitecustomize":
    folders: Any = [f for f in sys.meta_path if hasattr(f, "envbuilder_folders")]
    if folders:
        folders[0].envbuilder_folders.append(_FOLDER)
    else:
        sys.meta_path.insert(0, _Finder())
    _give_way()
