"""Local names say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FORBIDDEN = frozenset(
    {"found", "told", "said", "made", "own", "here", "there", "wanted", "known", "kept", "one"}
)
LINES = 3
"""A forbidden name may live for this many lines, as in a comprehension."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def forbidden(name: str | None) -> bool:
    return name is not None and name.strip("_") in FORBIDDEN


def bound(node: ast.AST) -> str | None:
    """Return the name that a node binds in its scope, if any."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
        case ast.alias(name=name, asname=alias):
            return alias or name
        case _:
            return None


def uses(scope: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """Yield name, line and whether it is bound there, in a scope and those nested in it."""
    left = [(child, False) for child in ast.iter_child_nodes(scope)][::-1]
    while left:
        child, inside = left.pop()
        binds = bound(child)
        name = binds or (child.id if isinstance(child, ast.Name) else None)
        if name is not None:
            yield name, getattr(child, "lineno", 0), binds is not None and not inside
        inside |= isinstance(child, _Function | _Comprehension | ast.ClassDef)
        left += [(below, inside) for below in ast.iter_child_nodes(child)][::-1]


def lives(scope: ast.AST) -> dict[str, tuple[int, int]]:
    """Return the forbidden names that a scope binds, each with its first and its last line."""
    lines: dict[str, list[int]] = {}
    bindings = set()
    for name, line, is_bound in uses(scope):
        if is_bound:
            bindings.add(name)
        # A comprehension uses its variable before it binds it.
        if name in bindings or isinstance(scope, _Comprehension):
            lines.setdefault(name, []).append(line)
    return {name: (min(lines[name]), max(lines[name])) for name in bindings if forbidden(name)}


def lasting(node: ast.AST) -> str | None:
    """Return the name of a function, a class, or an attribute that is set."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return None


def offences(tree: ast.Module) -> list[str]:
    """Return the forbidden names of a module that live too long, each with its line."""
    result = []
    for node in ast.walk(tree):
        name = lasting(node)
        if forbidden(name):
            result.append(f"{getattr(node, 'lineno', 0)}: {name}")
        if isinstance(node, ast.Module | ast.ClassDef):
            result += [f"{first}: {name}" for name, (first, _) in lives(node).items()]
        elif isinstance(node, _Function | _Comprehension):
            for name, (first, last) in lives(node).items():
                if last - first >= LINES:
                    result.append(f"{first}: {name}, up to line {last}")
    return result


def test_names_say_what_they_hold(repository: Path) -> None:
    package = repository / "envbuilder"
    wrong = [
        f"{path.relative_to(package)}:{offence}"
        for path in sorted(package.rglob("*.py"))
        for offence in offences(ast.parse(path.read_text()))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    found = 1\n    x()\n    x()\n    return found",
        "def f(\n    found,\n    x,\n):\n    return found(x)",
        "def f():\n    for one in x:\n        y()\n        y()\n        y(one)",
        "def f():\n    found = 1\n    x()\n    x()\n    return [a for a in b if a == found]",
        "x = [\n    one\n    + 1\n    + 1\n    for one in y\n]",
        "found = 1",
        "import found",
        "from a import b as made",
        "def told():\n    pass",
        "class A:\n    kept: int",
        "class A:\n    def f(self):\n        self._known = 1",
    ],
)
def test_names_that_live_long_are_listed(source: str) -> None:
    assert len(offences(ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    found = 1\n    return found",
        "def f():\n    return [one for one in x]",
        "def f():\n    x(found=1)\n    return x.found",
        "def f():\n    return found\n\n\ndef g():\n    return found",
        "'found'",
    ],
)
def test_short_lives_and_names_bound_elsewhere_are_not_listed(source: str) -> None:
    assert offences(ast.parse(source)) == []
