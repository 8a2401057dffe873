"""Runs the sabotage as soon as a framework has been imported, whoever imports it.

A copy of this module lies in an environment's site-packages, and a .pth file imports it when the
interpreter starts: what is verified is a real environment that is broken. A file beside it names
the framework.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FRAMEWORK = Path(__file__).with_name("sabotage.framework").read_text()


class AfterImport:
    """A finder of the framework that finds the real one, with the sabotage behind its last line."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != FRAMEWORK:
            return None
        # Only while it looks for the real one: it may be looked for before it is imported.
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def load_and_break(module: Any) -> None:
            load(module)
            importlib.import_module("sabotage_fault")

        spec.loader.exec_module = load_and_break
        return spec


sys.meta_path.insert(0, AfterImport())
