#!/usr/bin/env python3
"""Measure the size and shape of the code, and hold it to `[tool.rooms]` in pyproject.toml.

    tools/rooms.py          a table of this checkout beside its budgets, and what is forbidden
    tools/rooms.py --check  print what is above its budget; exit code 1 if anything is

Code is weighed in nodes of its syntax tree: statements, expressions, patterns, handlers and
parameters. A conditional expression weighs as much as the `if` that says the same, a comprehension
as the loop, so packing and unpacking cost nothing; docstrings, annotations and the names of keyword
arguments weigh nothing. Style is counted for 1,000 statements of the product: parallel assignments
(`a, b = x, y`), stars before literals, conditional expressions, comprehensions, and what is nested:
a conditional in a conditional, a comprehension in another one or with two loops.

A room is a folder of `envbuilder/`; modules at the top belong to no room. An import counts once for
each pair of modules, imports for type checking included. A one-caller module is imported by one
other module. A pass-through function only calls another one with its own arguments. A module of
more than 600 lines gives its reason in its docstring: "Long because …". Commands and options are
those that `--help` shows, without the options of all commands; options of one name are of one kind.

Product, tests, tools and style are held strictly; all else may be 1 % above its budget.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

PACKAGE = "envbuilder"
GENERATED_PAGE = "commands.md"
CHECKOUT = Path(__file__).resolve().parent.parent

Edges = dict[str, set[str]]
Measures = dict[str, float]

WEIGHED = (ast.expr, ast.stmt, ast.pattern, ast.excepthandler, ast.arg, ast.comprehension)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CONDITIONAL_WEIGHT = 3
COMPREHENSION_WEIGHT = 5
LONG_TEXT = 200
"""Characters above which a text constant counts as data."""
LONG_MODULE = 600
REASON = "long because "
NAMES_OF_CONDA = "conda-python.txt"
STRICT = ("nodes of", "style:", "circles", "upward imports", "long modules", "surface:")
SLACK = 1.01


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


def counted(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree without docstrings and annotations."""
    left_out = set()
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation:
                left_out.update(map(id, ast.walk(annotation)))
        if is_docstring(node):
            left_out.update(map(id, ast.walk(node)))
    return [node for node in ast.walk(tree) if id(node) not in left_out]


def weight(nodes: list[ast.AST]) -> int:
    """Weigh counted nodes."""
    weighed = sum(isinstance(node, WEIGHED) for node in nodes)
    for node in nodes:
        if isinstance(node, ast.IfExp):
            weighed += CONDITIONAL_WEIGHT - 1
        elif isinstance(node, ast.comprehension):
            weighed += COMPREHENSION_WEIGHT - 1
    return weighed


def weight_of(folder: Path) -> int:
    """Weigh all Python files of a folder."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]
    return sum(weight(counted(tree)) for tree in trees)


def nested(node: ast.AST, around: frozenset[str] = frozenset()) -> int:
    """Count conditionals in conditionals, comprehensions in others or with several loops."""
    found = 0
    for child in ast.iter_child_nodes(node):
        kind = ""
        if isinstance(child, ast.IfExp):
            kind = "conditional"
        elif isinstance(child, COMPREHENSIONS):
            kind = "comprehension"
            found += len(child.generators) > 1
        found += kind in around
        if isinstance(child, ast.stmt | ast.Lambda):
            found += nested(child)
        else:
            found += nested(child, around | {kind} if kind else around)
    return found


def style(trees: list[ast.Module]) -> Measures:
    """Count what makes readers stop, for 1,000 statements."""
    counts = Counter({"parallel": 0, "starred": 0, "conditional": 0, "comprehensions": 0})
    statements = 0
    for tree in trees:
        counts["nested"] += nested(tree)
        for node in counted(tree):
            statements += isinstance(node, ast.stmt)
            if isinstance(node, ast.IfExp):
                counts["conditional"] += 1
            elif isinstance(node, ast.comprehension):
                counts["comprehensions"] += 1
            elif isinstance(node, ast.Starred):
                counts["starred"] += isinstance(node.value, ast.Tuple | ast.List)
            elif isinstance(node, ast.Assign):
                both = (node.targets[0], node.value)
                counts["parallel"] += all(isinstance(part, ast.Tuple) for part in both)
    return {f"style: {name}": round(1000 * n / statements, 1) for name, n in counts.items()}


def long_text(trees: list[ast.Module]) -> int:
    """Count the characters of long text constants, which are data within code."""
    return sum(
        len(node.value)
        for tree in trees
        for node in counted(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if len(node.value) > LONG_TEXT
    )


def long_modules(named: dict[str, Path], trees: dict[str, ast.Module]) -> list[str]:
    """Return the long modules that give no reason."""
    return [
        name
        for name, path in named.items()
        if len(path.read_text(encoding="utf-8").splitlines()) > LONG_MODULE
        and REASON not in (ast.get_docstring(trees[name]) or "").lower()
    ]


def data_bytes(checkout: Path) -> int:
    """Return the size of templates and profiles, without locks and the index of conda's names."""
    files = [
        path
        for folder in ("templates", "profiles")
        for path in (checkout / folder).rglob("*")
        if path.is_file() and not {"locks", "__pycache__", NAMES_OF_CONDA} & {*path.parts}
    ]
    return sum(path.stat().st_size for path in files)


def surface() -> Measures:
    """Count the commands and options of the command line that is installed here."""
    import click  # only where the command line is measured

    from envbuilder import cli

    shared = {option.name for option in cli.global_options()}
    commands = 0
    options = []
    waiting: list[click.Command] = [cli.cli]
    while waiting:
        command = waiting.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            below = [command.get_command(context, name) for name in command.list_commands(context)]
            waiting += [inner for inner in below if inner and not inner.hidden]
        else:
            commands += 1
        if command is not cli.cli:
            options += [
                parameter.name
                for parameter in command.params
                if isinstance(parameter, click.Option) and not parameter.hidden
            ]
    options = [name for name in options if name not in shared]
    return {
        "surface: commands": commands,
        "surface: options": len(options),
        "surface: kinds of options": len(set(options)),
    }


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
    size = {name: weight(counted(tree)) for name, tree in trees.items()}
    forbidden = {
        "circles": circles(imported),
        "upward": upward(imported, layers(checkout)),
        "long": long_modules(named, trees),
    }
    measures: Measures = {
        "nodes of product": sum(size.values()),
        "nodes of tests": weight_of(checkout / "tests"),
        "nodes of tools and benchmarks": sum(
            weight_of(checkout / folder) for folder in ("tools", "benchmarks")
        ),
        **style(list(trees.values())),
        "long text, characters": long_text(list(trees.values())),
        "templates and profiles, bytes": data_bytes(checkout),
        "modules": len(named),
        "long modules without a reason": len(forbidden["long"]),
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


_ADVICE = """\
tools/rooms.py --help says what is counted. Reuse or simplify, or write the new number into
[tool.rooms] of pyproject.toml, and the reason into the commit."""


def excess(measures: Measures, budgets: Measures) -> list[str]:
    """Return a line for each measure above its budget, and each without a counterpart."""
    lines = [
        f"{name}: {value}, and its budget is {budgets[name]}"
        for name, value in measures.items()
        if name in budgets and value > budgets[name] * (1 if name.startswith(STRICT) else SLACK)
    ]
    lines += [f"{name}: no budget" for name in measures if name not in budgets]
    return lines + [f"{name}: a budget of nothing" for name in budgets if name not in measures]


def main() -> int:
    """Print the table, or what is above its budget."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    measures, forbidden = measure(CHECKOUT)
    measures |= surface()
    budgets = configuration(CHECKOUT)["rooms"]
    if options.check:
        lines = excess(measures, budgets)
        for line in lines:
            print(line)
        if lines:
            print(_ADVICE)
        return bool(lines)
    for name, value in measures.items():
        print(f"{name:32}{value:10}{budgets.get(name, ''):>10}")
    for name, places in forbidden.items():
        for place in places:
            print(f"{name}: {place}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
