"""Read what a Python file states as literals, and which files it reads. Nothing runs.

Understood are texts, lists, dicts, names, `+`, paths, and calls that read one file. A statement of
any other kind makes everything unknown that it may change.
"""

from __future__ import annotations

import ast
import itertools
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped

_MOST_STEPS = 200_000
"""Maximum number of expressions that are read; those of a function count for each of its calls."""
_MOST_ITEMS = 2000
_LONGEST_TEXT = 20_000
REST = "**"
"""The key of what else a dict may hold, if that is unknown."""


class Unknown(Struct, frozen=True):
    """A value that only running the file would show."""

    line: int


class Text(Struct, frozen=True):
    """A text of the file, and its line."""

    text: str
    line: int


class FileReference(Struct, frozen=True):
    """The content of a file, and the line that reads it."""

    path: str
    line: int


Names = dict[str, Any]
"""Name → its value: `Text`, `FileReference`, `Unknown`, a function, or a list or dict of values."""


class StaticReader:
    """Reads the statements of a Python file in their order."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.names: Names = {"__file__": Text(posixpath.basename(file), 1)}
        self.setup: Names | None = None
        """What `setup` is called with, if it is."""
        self._steps = 0
        self._changed: dict[int, tuple[Any, Unknown]] = {}
        """Identity of a list or dict that may have been changed, whatever its names → what it was,
        and what it is."""

    def refuse(self, line: int, what: str) -> NoReturn:
        """Raise `InvalidError` for what cannot be read without running the file."""
        raise InvalidError(
            f"{escaped(self.file)}:{line}: {what}",
            "Write what it requires under requirements: in envbuilder.yaml, or list another file"
            " that says so under requirements_from:.",
        )

    def _step(self, count: int) -> None:
        """Count what is looked at. Raise `InvalidError` if it is too much."""
        self._steps += count
        if self._steps > _MOST_STEPS:
            self.refuse(1, "computes too much to be read")

    # ---- statements

    def read_module(self, module: ast.Module) -> None:
        """Read a file: its statements, then its functions if none of those calls `setup`."""
        self.read(module.body, self.names)
        for statement in module.body:
            if self.setup is None and isinstance(statement, ast.FunctionDef):
                self.read(statement.body, _within(statement, self.names))

    def read(self, body: Sequence[ast.stmt], names: Names) -> None:
        """Read statements, and store in `names` what they assign."""
        for statement in body:
            match statement:
                case ast.Import() | ast.ImportFrom() | ast.ClassDef() | ast.Return():
                    pass
                case ast.FunctionDef(name=name):
                    names[name] = statement
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    names[name] = self.value(value, names)
                case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), *_])], value=value):
                    # Of a function that reads a file, the requirements come before the rest.
                    first = _file(self.value(value, names), value)
                    self._forget([statement], names)
                    names[name] = first
                case ast.With(
                    items=[ast.withitem(context_expr=value, optional_vars=ast.Name(id=name))],
                    body=inner,
                ):
                    names[name] = self.value(value, names)
                    self.read(inner, names)
                case ast.Expr(value=ast.Call() as call) if _is_setup(call):
                    if self.setup is not None:
                        self.refuse(call.lineno, "setup() is called in a second place")
                    self.setup = self._keywords(call, names)
                case ast.If() | ast.Try() if _calls_setup(statement):
                    self._read_around_setup(statement, names)
                case _:
                    self._forget([statement], names)

    def _read_around_setup(self, statement: ast.If | ast.Try, names: Names) -> None:
        for block in (statement.body, statement.orelse):
            if any(map(_calls_setup, block)):
                self.read(block, names)
            else:
                self._forget(block, names)

    def _forget(self, body: Sequence[ast.stmt], names: Names) -> None:
        """Make unknown what statements may change: also each list and dict that they mention."""
        for node in itertools.chain.from_iterable(map(ast.walk, body)):
            if isinstance(node, ast.Name):
                for part in self._changeable(names.get(node.id)):
                    self._changed[id(part)] = part, Unknown(node.lineno)
                if not isinstance(node.ctx, ast.Load):
                    names[node.id] = Unknown(node.lineno)

    # ---- expressions

    def value(self, node: ast.expr, names: Names) -> Any:
        """Return the value of an expression."""
        self._step(1)
        value: Any = Unknown(node.lineno)
        match node:
            case ast.Constant(value=str(text)):
                value = Text(text, node.lineno)
            case ast.Name(id=name):
                value = self._unchanged(names.get(name, value))
            case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Set(elts=nodes):
                value = self._items(nodes, names)
            case ast.Dict(keys=keys, values=nodes):
                value = self._table([self._key(key, names) for key in keys], nodes, names)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                value = _sum(self.value(left, names), self.value(right, names), node)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                value = _path("join", self._items([left, right], names), node)
            case ast.Attribute(value=held, attr="parent"):
                value = _path("dirname", [self.value(held, names)], node)
            case ast.Subscript(value=held, slice=key):
                value = _item(self.value(held, names), self.value(key, names), node)
            case ast.ListComp(generators=[each]) | ast.GeneratorExp(generators=[each]):
                value = _file(self.value(each.iter, names), node)
            case ast.Call():
                value = self._result(node, names)
        is_long = isinstance(value, list) and len(value) > _MOST_ITEMS
        if is_long or len(text_of(value)) > _LONGEST_TEXT:
            self.refuse(node.lineno, "a value that is too long to be read")
        return value

    def _unchanged(self, value: Any) -> Any:
        """Return a value, or an `Unknown` if a statement may have changed it under any name."""
        for part in self._changeable(value):
            if id(part) in self._changed:
                return self._changed[id(part)][1]
        return value

    def _changeable(self, value: Any) -> list[Any]:
        """Return a value and those that it holds, as far as they can be changed in place."""
        values = [value]
        if isinstance(value, dict):
            values += value.values()
        self._step(len(values))
        return [each for each in values if isinstance(each, list | dict | FileReference)]

    def _items(self, nodes: Iterable[ast.expr], names: Names) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += as_list(self.value(node.value, names))
            else:
                items.append(self.value(node, names))
        return items

    def _key(self, node: ast.expr | None, names: Names) -> str | None:
        """Return a key of a dict; `REST` if it is unknown, None for another dict's items."""
        if node is None:
            return None
        key = self.value(node, names)
        return key.text if isinstance(key, Text) else REST

    def _table(self, keys: Iterable[str | None], nodes: Iterable[ast.expr], names: Names) -> Names:
        table: Names = {}
        for key, node in zip(keys, nodes, strict=True):
            value = self.value(node, names)
            if key is None and isinstance(value, dict):
                table.update(value)
            elif key is None or key == REST:
                table[REST] = Unknown(node.lineno)
            else:
                table[key] = value
        return table

    def _keywords(self, call: ast.Call, names: Names) -> Names:
        keys = [keyword.arg for keyword in call.keywords]
        return self._table(keys, [keyword.value for keyword in call.keywords], names)

    def _result(self, call: ast.Call, names: Names) -> Any:
        """Return the result of a call."""
        if _own_function(call, names):
            return self._file_of_function(call, names)
        name = _name(call.func)
        values = self._items(call.args, names)
        if isinstance(call.func, ast.Attribute):
            held = self.value(call.func.value, names)
            if isinstance(held, FileReference):  # .read().splitlines()
                return FileReference(held.path, call.lineno)
            if isinstance(held, Text):  # a method of a path
                values.insert(0, held)
        if name == "dict" and not values:
            return self._keywords(call, names)
        if name in _OPENING and values and isinstance(values[0], Text):
            return FileReference(posixpath.normpath(values[0].text), call.lineno)
        if name in _OPENING | _COPYING and values:
            return _file(values[-1], call)
        return _path(name, values, call)

    def _file_of_function(self, call: ast.Call, names: Names) -> FileReference | Unknown:
        """Return the only file that a function reads, unless it adds packages to that."""
        function = _own_function(call, names)
        inner = self._bound(function, call, names)
        self.read(function.body, inner)
        nodes = [*ast.walk(function)]
        self._step(len(nodes) + len(names))
        values = [self.value(node, inner) for node in nodes if isinstance(node, ast.Call)]
        paths = {value.path for value in values if isinstance(value, FileReference)}
        if len(paths) != 1 or any(map(_lists_packages, nodes)):
            return Unknown(call.lineno)
        return FileReference(paths.pop(), call.lineno)

    def _bound(self, function: ast.FunctionDef, call: ast.Call, names: Names) -> Names:
        """Return the names within a function that is called."""
        arguments = function.args
        parameters = [each.arg for each in arguments.args]
        values = self._items(call.args, names)
        defaults = self._items(arguments.defaults, names)
        inner = _within(function, names)
        inner.update(zip(reversed(parameters), reversed(defaults), strict=False))
        inner.update(zip(parameters, values, strict=False))
        inner.update(self._keywords(call, names))
        if arguments.vararg:
            inner[arguments.vararg.arg] = values[len(parameters) :]
        return inner


_OPENING = frozenset({"open", "read_text", "parse_requirements"})
"""What reads the file that its first argument names, or is."""
_COPYING = frozenset({"list", "tuple", "set", "sorted", "map", "filter"})
"""What returns the lines of its last argument, more or less."""
_JOINING = frozenset(
    {
        "abspath",
        "absolute",
        "cwd",
        "getcwd",
        "join",
        "joinpath",
        "normpath",
        "Path",
        "realpath",
        "resolve",
        "str",
    }
)
"""What makes a path of others; they are below the file's own folder."""


def _own_function(call: ast.Call, names: Names) -> Any:
    """Return the function of the file that is called; None if it is another one's."""
    function = names.get(call.func.id) if isinstance(call.func, ast.Name) else None
    return function if isinstance(function, ast.FunctionDef) else None


def _name(node: ast.expr) -> str:
    """Return the last of names with dots between them; empty if it is none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_setup(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == "setup"


def _calls_setup(node: ast.AST) -> bool:
    return any(map(_is_setup, ast.walk(node)))


def _within(function: ast.FunctionDef, names: Names) -> Names:
    """Return the names within a function that is not known to be called; itself it is unknown."""
    parameters = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    return names | dict.fromkeys([function.name, *parameters], Unknown(function.lineno))


def _lists_packages(node: ast.AST) -> bool:
    """Return whether a list is written here, or added to, with what may be a package."""
    items: list[ast.expr] = []
    if isinstance(node, ast.List):
        items = node.elts
    elif isinstance(node, ast.Call) and _name(node.func) in {"add", "append", "insert"}:
        items = node.args
    texts = [item.value for item in items if isinstance(item, ast.Constant)]
    return any(isinstance(text, str) and text[:1].isalnum() for text in texts)


def _file(value: Any, node: ast.expr) -> FileReference | Unknown:
    return value if isinstance(value, FileReference) else Unknown(node.lineno)


def _path(name: str, parts: Sequence[Any], node: ast.expr) -> Text | Unknown:
    """Return the path that a function of paths makes of its arguments."""
    is_parent = name == "dirname"
    if not (is_parent or name in _JOINING) or not all(isinstance(part, Text) for part in parts):
        return Unknown(node.lineno)
    path = posixpath.join("", *map(text_of, parts))
    if is_parent:
        path = posixpath.normpath(posixpath.join(path, ".."))
    return Text(path, node.lineno)


def _sum(left: Any, right: Any, node: ast.expr) -> Any:
    if isinstance(left, Text) and isinstance(right, Text):
        return Text(left.text + right.text, node.lineno)
    if isinstance(left, list | FileReference) and isinstance(right, list | FileReference):
        return [*as_list(left), *as_list(right)]
    return Unknown(node.lineno)


def _item(held: Any, key: Any, node: ast.expr) -> Any:
    if isinstance(held, dict):
        return held.get(text_of(key), Unknown(node.lineno))
    return _file(held, node)


def text_of(value: Any) -> str:
    """Return a value that is a text; empty if it is another one."""
    return value.text if isinstance(value, Text) else ""


def as_list(value: Any) -> list[Any]:
    """Return a list, or one of a value alone."""
    return value if isinstance(value, list) else [value]
