#!/usr/bin/env python3
"""Measure the size and shape of the code, and hold it to `[tool.rooms]` in pyproject.toml.

    tools/rooms.py                    a table of this checkout beside its budgets
    tools/rooms.py OTHER [OTHER ...]  with a column for each other checkout, in front
    tools/rooms.py --check            print what is above its budget; exit code 1 if anything is
    tools/rooms.py --json             one JSON object, with the circles and upward imports by name

A statement is any Python statement but a docstring. A room is a folder of `envbuilder/`; modules at
the top belong to no room. An import counts once for each pair of modules, imports for type checking
included. A one-caller module is imported by a single other one. A pass-through function only calls
another one with its own arguments.
"""

from __future__ import annotations

import argparse
import ast
import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

PACKAGE = "envbuilder"
GENERATED_PAGE = "commands.md"
CHECKOUT = Path(__file__).resolve().parent.parent

Edges = dict[str, set[str]]
Measures = dict[str, float]


def configuration(checkout: Path) -> dict[str, Any]:
    """Return the `tool` table of a checkout's pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]
    return table


def layers(checkout: Path) -> list[set[str]]:
    """Return the rooms from the top as import-linter's contract orders them."""
    for contract in configuration(checkout)["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            return [{name.strip() for name in line.split("|")} for line in contract["layers"]]
    raise SystemExit("pyproject.toml has no import-linter contract of the type `layers`")


def modules(checkout: Path) -> dict[str, Path]:
    """Return the files of the package's modules by dotted name."""
    named = {}
    for path in sorted((checkout / PACKAGE).rglob("*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def edges(named: dict[str, Path], trees: dict[str, ast.Module]) -> Edges:
    """Return the modules that each module imports, wherever the statement stands."""
    imported: Edges = {name: set() for name in named}
    for name, path in named.items():
        inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(trees[name]):
            if isinstance(node, ast.Import):
                imported[name] |= {a.name for a in node.names if a.name in named}
            elif isinstance(node, ast.ImportFrom):
                above = inside[: len(inside) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    imported[name] |= {full if full in named else base} & named.keys()
        imported[name].discard(name)
    return imported


def circles(imported: Edges) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    reachable = {name: set(others) for name, others in imported.items()}
    for middle, onwards in reachable.items():
        for others in reachable.values():
            if middle in others:
                others.update(onwards)
    groups = {
        tuple(sorted(b for b in others if a in reachable[b]))
        for a, others in reachable.items()
        if a in others
    }
    return sorted(map(list, groups))


def room(name: str) -> str:
    """Return the room of a module, empty for one at the top."""
    return name.split(".")[1] if name.count(".") > 1 else ""


def upward(imported: Edges, order: list[set[str]]) -> list[str]:
    """Return the imports that go up, or sideways between rooms of one line, in `order`."""
    line = {name: number for number, names in enumerate(order) for name in names}
    return sorted(
        f"{name} imports {other}"
        for name, others in imported.items()
        for other in others
        if room(name) in line and room(other) in line and room(name) != room(other)
        if line[room(name)] >= line[room(other)]
    )


def is_docstring(node: ast.AST) -> bool:
    """Tell whether a statement is only a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def statements(tree: ast.AST) -> int:
    """Count the statements of a module."""
    return sum(isinstance(n, ast.stmt) and not is_docstring(n) for n in ast.walk(tree))


def passes_through(function: ast.FunctionDef) -> bool:
    """Tell whether a function only calls another one with its own arguments, all of them."""
    body = [node for node in function.body if not is_docstring(node)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
        return False
    passed = [a.value if isinstance(a, ast.Starred) else a for a in call.args]
    passed += [keyword.value for keyword in call.keywords]
    used = {n.id for a in [*passed, call.func] for n in ast.walk(a) if isinstance(n, ast.Name)}
    parameters = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    simple = all(isinstance(a, ast.Name | ast.Constant | ast.Attribute) for a in passed)
    return simple and parameters <= used


def parsed(folder: Path) -> list[ast.Module]:
    """Parse all Python files of a folder."""
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def words(checkout: Path) -> int:
    """Count the words of the docs, without the page that is generated from the commands."""
    pages = (checkout / "docs").rglob("*.md")
    return sum(len(page.read_text().split()) for page in pages if page.name != GENERATED_PAGE)


def measure(checkout: Path) -> tuple[Measures, dict[str, list[Any]]]:
    """Return the measures of a checkout by name, and its forbidden imports."""
    named = modules(checkout)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in named.items()}
    imported = edges(named, trees)
    callers = Counter(other for others in imported.values() for other in others)
    across = [(room(a), room(b)) for a, others in imported.items() for b in others]
    across = [(a, b) for a, b in across if a and b and a != b]
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    size = {name: statements(tree) for name, tree in trees.items()}
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
    forbidden = {"circles": circles(imported), "upward": upward(imported, layers(checkout))}
    measures: Measures = {
        "product statements": sum(size.values()),
        "test statements": sum(map(statements, parsed(checkout / "tests"))),
        "modules": len(named),
        "lines of the longest module": max(len(p.read_text().splitlines()) for p in named.values()),
        "import statements, %": round(100 * imports / sum(size.values()), 1),
        "imports across rooms": len(across),
        "arrows between rooms": len(set(across)),
        "one-caller modules": sum(number == 1 for number in callers.values()),
        "pass-through functions": sum(
            isinstance(node, ast.FunctionDef) and passes_through(node) for node in nodes
        ),
        "circles": len(forbidden["circles"]),
        "upward imports": len(forbidden["upward"]),
        "words of docs": words(checkout),
    }
    for name in sorted({room(name) for name in named} - {""}):
        measures[name] = sum(number for module, number in size.items() if room(module) == name)
    return measures, forbidden


def table(columns: dict[str, Measures], budgets: Measures) -> str:
    """Return the measures of some checkouts beside the budgets, a line each."""
    names = list(dict.fromkeys(name for measures in columns.values() for name in measures))
    lines = [["", *columns, "budget"]]
    for name in names:
        cells = [measures.get(name, "") for measures in columns.values()]
        lines.append([name, *map(str, cells), str(budgets.get(name, ""))])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def excess(measures: Measures, budgets: Measures) -> list[str]:
    """Return a line for each measure above its budget, and each without a counterpart."""
    lines = [
        f"{name}: {value}, and its budget is {budgets[name]}"
        for name, value in measures.items()
        if name in budgets and value > budgets[name]
    ]
    lines += [f"{name}: no budget" for name in measures if name not in budgets]
    return lines + [f"{name}: a budget of nothing" for name in budgets if name not in measures]


def main() -> int:
    """Print the table, the object or what is above its budget."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("others", nargs="*", type=Path, metavar="OTHER")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measures, forbidden = measure(CHECKOUT)
    budgets = configuration(CHECKOUT)["rooms"]
    if options.json:
        print(json.dumps({**measures, **forbidden}, indent=2))
    elif options.check:
        lines = excess(measures, budgets)
        print("\n".join(lines), end="\n" if lines else "")
        return bool(lines)
    else:
        columns = {other.name: measure(other)[0] for other in options.others}
        print(table({**columns, "this": measures}, budgets))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
