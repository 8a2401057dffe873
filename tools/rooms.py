#!/usr/bin/env python3
"""Count what the layout of the code is worth: imports across rooms, circles, statements.

    tools/rooms.py [CHECKOUT]     this one without it; prints one JSON object

A room is a folder of `envbuilder/`; a module at the top counts as a room of its own. An import
counts once for each pair of modules, those for type checking included. A circle is a group of
modules each of which imports, over others, itself; `payload` stands alone and counts, too.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

ORDER = (
    ("commands",),
    ("bundle", "notebooks", "verify"),
    ("build", "doctor", "locks"),
    ("packages",),
    ("profiles",),
    ("host",),
    ("payload", "containers"),
    ("core",),
)
"""The rooms from the top; those of a line do not know each other."""
PACKAGE = "envbuilder"
Edges = dict[str, set[str]]


def modules(checkout: Path) -> dict[str, Path]:
    """Return the dotted names of the package's modules, and their files."""
    named = {}
    for path in sorted((checkout / PACKAGE).rglob("*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def edges(named: dict[str, Path]) -> Edges:
    """Return which modules each module imports, wherever the statement stands."""
    found: Edges = {name: set() for name in named}
    for name, path in named.items():
        inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {a.name for a in node.names if a.name in named}
            elif isinstance(node, ast.ImportFrom):
                above = inside[: len(inside) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    found[name] |= {full if full in named else base} & named.keys()
        found[name].discard(name)
    return found


def circles(imported: Edges) -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imported[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in imported:
        if name not in index:
            visit(name)
    return groups


def room(name: str) -> str:
    """Return the room of a module: the first name below the package."""
    return name.split(".")[1] if "." in name else ""


def upward(imported: Edges) -> list[str]:
    """Return the imports that go up, or sideways between rooms of one line, in `ORDER`."""
    line = {name: number for number, names in enumerate(ORDER) for name in names}
    return sorted(
        f"{name} imports {other}"
        for name, others in imported.items()
        for other in others
        if room(name) in line and room(other) in line and room(name) != room(other)
        if line[room(name)] >= line[room(other)]
    )


def statements(folder: Path) -> int:
    """Count the statements of all Python files of a folder."""
    return sum(
        isinstance(node, ast.stmt)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def main(arguments: list[str]) -> int:
    """Print the counts."""
    sys.setrecursionlimit(10_000)
    checkout = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    named = modules(checkout)
    imported = edges(named)
    across = [(room(a), room(b)) for a, others in imported.items() for b in others]
    across = [(a, b) for a, b in across if a != b]
    counts = {
        "modules": len(named),
        "rooms": len({room(name) for name in named} - {""}),
        "imports_across_rooms": len(across),
        "arrows_between_rooms": len(set(across)),
        "circles": circles(imported),
        "upward": upward(imported),
        "statements": {name: statements(checkout / name) for name in (PACKAGE, "tests")},
    }
    print(json.dumps(counts, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
