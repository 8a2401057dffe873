"""Read what structures say of their keys, and put it into tables of a page.

Meanings are the docstrings of fields, which Python does not keep: they come from the source.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuilder.core import settings, types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import ModuleType


class Key(NamedTuple):
    """A field of a structure, as its class states it."""

    name: str
    annotation: ast.expr
    meaning: str
    """Its docstring on one line; empty if there is none."""
    default: str
    """The default as Python writes it; empty if the key is required."""

    @property
    def shown_default(self) -> str:
        """The default as YAML writes it; empty if it is a matter of course."""
        if self.default in {"", "None", "()", "{}", "''"} or "(" in self.default:
            return ""
        if self.default.rpartition(".")[2].isupper():  # a constant, whose value `meaning` states
            return ""
        return {"False": "false", "True": "true"}.get(self.default, self.default.strip("'"))


class Structure(NamedTuple):
    """A structure that a module defines."""

    name: str
    about: str
    keys: tuple[Key, ...]


def structures(module: ModuleType) -> Iterator[Structure]:
    """Yield the public structures of a module, the one that holds the others first."""
    body = ast.parse(inspect.getsource(module)).body
    classes = [n for n in body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    for node in [*classes[-1:], *classes[:-1]]:
        if keys := tuple(_keys(node)):
            about = inspect.cleandoc(ast.get_docstring(node) or "")
            yield Structure(node.name, about, keys)


def _keys(node: ast.ClassDef) -> Iterator[Key]:
    for place, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        default = "" if statement.value is None else ast.unparse(statement.value)
        yield Key(statement.target.id, statement.annotation, meaning, default)


def sections(module: ModuleType, derived: Collection[str] = ()) -> Iterator[str]:
    """Yield a section for each structure: its docstring, and a row for each of its keys.

    Those that are `derived` are in no file.
    """
    for structure in (each for each in structures(module) if each.name not in derived):
        rows = [(f"`{k.name}`", kind(k.annotation), _with_default(k)) for k in structure.keys]
        table = "\n".join(table_of(("key", "value", "meaning"), rows))
        yield f"\n## {structure.name}\n\n{structure.about}\n\n{table}\n"


def lists(module: ModuleType) -> Iterator[str]:
    """Yield a section for each structure, without types: for formats that have a schema."""
    for structure in structures(module):
        names = ", ".join(f"`{key.name}`" for key in structure.keys)
        meanings = "".join(f"- `{k.name}`: {k.meaning}\n" for k in structure.keys if k.meaning)
        texts = filter(None, (f"## {structure.name}", structure.about, names, meanings.strip()))
        yield "\n" + "\n\n".join(texts) + "\n"


def table_of(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _with_default(key: Key) -> str:
    default = key.shown_default
    return f"{key.meaning} Default: `{default}`.".strip() if default else key.meaning


def kind(node: ast.expr) -> str:  # noqa: PLR0911 (one return per form reads best)
    """Put an annotation into words."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{kind(left)} or {kind(right)}"
        case ast.Constant(value=None):
            return "nothing"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, *_])):
            return f"list of: {kind(inner)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"mapping: {kind(key)} → {kind(value)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return ", ".join(f"`{ast.literal_eval(v)}`" for v in values)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            return kind(inner)
        case ast.Attribute(attr=name):
            return _described(getattr(types, name), name)
        case ast.Name(id=name):
            if hasattr(getattr(settings, name, None), "__metadata__"):
                return _described(getattr(settings, name), name)
            return _NAMES.get(name, f"[{name}](#{name.lower()})")
    return ast.unparse(node)


_NAMES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "`true`/`false`",
    "Any": "anything",
    "Positive": "number",
    "NotNegative": "number",
    "Count": "whole number",
    "Size": "whole number",
    "_Keys": "list of: text",
}


def _described(alias: Any, name: str) -> str:
    for meta in getattr(alias, "__metadata__", ()):
        if meta.description:
            return str(meta.description).partition(": ")[0]  # messages go on with its form
    values = getattr(alias, "__args__", ())
    if values and all(isinstance(v, str) for v in values):
        return ", ".join(f"`{v}`" for v in values)
    return name
