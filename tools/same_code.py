#!/usr/bin/env python3
"""Show that commits only moved code: the same statements before and after, but for imports.

    tools/same_code.py COMMIT...        exit 0 if each only moved code, 1 if one changed some
    tools/same_code.py FIRST..LAST      the commits of a range

Compared are all top-level statements of the modules below `envbuilder/` that a commit touches, as
ASTs: functions, classes, constants. Left out are what a move must change: imports, at the top and
inside functions, and the docstrings of modules. Where a statement stands does not matter.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

PACKAGE = "envbuilder/"


class _WithoutImports(ast.NodeTransformer):
    """Drop import statements; a block that held nothing else keeps a `pass`."""

    def visit_Import(self, node: ast.Import) -> None:
        """Drop `import x`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Drop `from x import y`."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the children, and mend a body that became empty."""
        super().generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node


def statements(source: str) -> Counter[tuple[str, str]]:
    """Count the top-level statements of a module, each as its name and its AST."""
    body = ast.parse(source).body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the module's docstring
    counted: Counter[tuple[str, str]] = Counter()
    for statement in body:
        kept = _WithoutImports().visit(statement)
        if kept is None or _is_empty_block(kept):
            continue
        counted[_name(kept), ast.dump(kept)] += 1
    return counted


def _is_empty_block(node: ast.stmt) -> bool:
    """Whether it is `if TYPE_CHECKING:` around imports alone."""
    return isinstance(node, ast.If) and all(isinstance(n, ast.Pass) for n in node.body)


def _name(node: ast.stmt) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:60]}…"


def differences(commit: str) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return the statements that only the parent has, and those that only the commit has."""
    names = _git("diff-tree", "-r", "--no-renames", "--name-status", "--no-commit-id", commit)
    before: Counter[tuple[str, str]] = Counter()
    after: Counter[tuple[str, str]] = Counter()
    for line in names.splitlines():
        status, _, path = line.partition("\t")
        if not path.startswith(PACKAGE) or not path.endswith(".py"):
            continue
        if status != "A":
            before += statements(_git("show", f"{commit}^:{path}"))
        if status != "D":
            after += statements(_git("show", f"{commit}:{path}"))
    return before - after, after - before


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def main(arguments: list[str]) -> int:
    """Print a line for each commit, and what it changed."""
    if not arguments:
        print(__doc__)
        return 2
    commits: list[str] = []
    for argument in arguments:
        span = [argument] if ".." in argument else ["--no-walk", argument]
        commits += _git("rev-list", "--reverse", *span).split()
    changed = 0
    for commit in commits:
        removed, added = differences(commit)
        subject = _git("show", "--no-patch", "--format=%h %s", commit).strip()
        print(f"{'changed' if removed or added else 'same   '} {subject}")
        for sign, counted in (("-", removed), ("+", added)):
            for name, _ in sorted(counted):
                print(f"    {sign} {name}")
        changed += bool(removed or added)
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
