#!/usr/bin/env python3
"""Follow a command through the modules of envbuilder.

    tools/walk.py build --profile cpu --backend venv --dry-run
    tools/walk.py --json run -- true

Runs the command in this process, then prints to standard error how many modules it loaded and
entered, how often it moved from one to another, and how many pairs of modules moves connect. A
module is entered when one of its functions is called, import time left out; a move is a call from a
function of one module to one of another, code of other packages in between left out.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent / "envbuilder"


class Walk:
    """Counts calls by module; `sys.setprofile` calls it."""

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.moves: Counter[tuple[str, str]] = Counter()
        self._names: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call of a function of ours, unless an import made it."""
        module = self._module(frame)
        if event != "call" or not module or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        caller = frame.f_back
        while caller is not None and not self._module(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name == "<module>":
            return
        self.entered.add(module)
        if caller is not None and self._module(caller) != module:
            self.moves[self._module(caller), module] += 1

    def _module(self, frame: FrameType) -> str:
        """Return the path of a frame's module below `envbuilder/`, empty for other code."""
        file = frame.f_code.co_filename
        if file not in self._names:
            path = Path(file)
            inside = path.is_relative_to(ROOT)
            self._names[file] = str(path.relative_to(ROOT)) if inside else ""
        return self._names[file]


def main(arguments: list[str]) -> None:
    """Run a command, then print the counts."""
    as_json = arguments[:1] == ["--json"]
    sys.path.insert(0, str(ROOT.parent))
    sys.argv = ["envbuilder", *arguments[as_json:]]
    walk = Walk()

    def report() -> None:
        sys.setprofile(None)
        rooms = {name.split("/")[0] for name in walk.entered if "/" in name}
        counts = {
            "modules loaded": sum(name.split(".")[0] == "envbuilder" for name in sys.modules),
            "modules entered": len(walk.entered),
            "rooms entered": len(rooms),
            "moves between modules": walk.moves.total(),
            "pairs of modules": len(walk.moves),
        }
        lines = [f"{number:>6}  {name}" for name, number in counts.items()]
        print(json.dumps(counts) if as_json else "\n".join(lines), file=sys.stderr)

    from envbuilder.cli import main as command

    execve = os.execve

    def execute(*parts: Any) -> None:
        report()  # now: `run` becomes the program that it starts
        execve(*parts)

    os.execve = execute  # type: ignore[assignment]
    # Commands leave without the interpreter's shutdown, after what is registered.
    atexit.register(report)
    threading.setprofile(walk)
    sys.setprofile(walk)
    command()


if __name__ == "__main__":
    main(sys.argv[1:])
