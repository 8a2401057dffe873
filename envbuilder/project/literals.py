"""Evaluate what of a Python module is written down: literals, names, and lists and texts of them.

Nothing runs: an expression that needs a module or a machine is unknown.
"""

from __future__ import annotations

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.project.lines import exists

_STEPS = 20_000
"""Maximum number of expressions and statements that are evaluated."""
LONGEST_LIST = 2000
_LONGEST_TEXT = 20_000
_DEEPEST = 20
"""Maximum number of functions that call each other."""


class Unknown(Exception):  # noqa: N818 (a value, and no failure)
    """A value that is known only while the module runs."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.line = getattr(node, "lineno", 1)


class Returned(Exception):  # noqa: N818
    """The end of a function."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Text(Struct, frozen=True):
    """A text of the module, and its line."""

    text: str
    line: int


class Lines(Struct, frozen=True):
    """The lines of a file, or the packages in a folder, and the module's line that reads it."""

    path: str
    line: int = 1


Names = dict[str, Any]
"""Name → its value: int, str, None, `Text`, `Lines`, `Unknown`, a function, or a list or dict of
them.

Values never change: a list that grows is another one.
"""


class Values:
    """Evaluates expressions of a module, which is a file of a project."""

    def __init__(self, project: Path, file: str) -> None:
        self._project = project
        self.file = file
        self._folder = posixpath.dirname(file)
        self._steps = self._depth = 0

    def run(self, body: Sequence[ast.stmt], names: Names) -> None:
        """Run statements as far as they change names; raise `Returned` at the end of a function."""
        raise NotImplementedError

    def refuse(self, line: int, what: str) -> NoReturn:
        """Raise `InvalidError` for what cannot be read without running the file."""
        raise InvalidError(
            f"{escaped(self.file)}:{line}: {what}",
            "Write what it requires under requirements: in envbuilder.yaml, or list another file"
            " that says so under requirements_from:.",
        )

    def step(self) -> None:
        """Raise `InvalidError` if this is more than a file needs."""
        self._steps += 1
        if self._steps > _STEPS:
            self.refuse(1, "computes too much to be read")

    def attempt(self, node: ast.expr | None, names: Names) -> Any:
        """Return a value, which may be `Unknown`."""
        if node is None:
            return None
        try:
            return self.value(node, names)
        except Unknown as unknown:
            return unknown

    def assign(self, target: ast.expr, value: Any, names: Names) -> None:
        """Give a name, or several, a value."""
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = as_list(value)
            if items is None or len(items) != len(target.elts):
                items = [Unknown(target)] * len(target.elts)
            for each, item in zip(target.elts, items, strict=True):
                self.assign(each, item, names)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            held = names.get(target.value.id)
            key = self.attempt(target.slice, names)
            if isinstance(held, dict) and isinstance(key, str | Text):
                names[target.value.id] = {**held, plain(key): value}

    def value(self, node: ast.expr, names: Names) -> Any:
        """Return the value of an expression; raise `Unknown` if it is unknown."""
        self.step()
        method = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unknown(node)
        value = method(node, names)
        too_long = isinstance(value, list) and len(value) > LONGEST_LIST
        if too_long or (isinstance(value, str) and len(value) > _LONGEST_TEXT):
            self.refuse(node.lineno, "a value that is too long to be read")
        return value

    def _value_constant(self, node: ast.Constant, names: Names) -> Any:
        if isinstance(node.value, str):
            return Text(node.value, node.lineno)
        if isinstance(node.value, int) or node.value is None:
            return node.value
        raise Unknown(node)

    def _value_joinedstr(self, node: ast.JoinedStr, names: Names) -> Any:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and (part.format_spec or part.conversion > 0):
                raise Unknown(node)
            value = self.value(part.value if isinstance(part, ast.FormattedValue) else part, names)
            parts.append(_text(value, node))
        return Text("".join(parts)[: _LONGEST_TEXT + 1], node.lineno)

    def _value_name(self, node: ast.Name, names: Names) -> Any:
        value = names.get(node.id, Unknown(node))
        if isinstance(value, Unknown | ast.AST):
            raise value if isinstance(value, Unknown) else Unknown(node)
        return value

    def _value_list(self, node: ast.List | ast.Tuple | ast.Set, names: Names) -> Any:
        result: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                result += self._list(item.value, names)
            else:
                result.append(self.attempt(item, names))
        return result

    _value_tuple = _value_set = _value_list

    def _value_dict(self, node: ast.Dict, names: Names) -> Any:
        result: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                more = self.value(value, names)
                result.update(more if isinstance(more, dict) else {})
            else:
                result[_text(self.value(key, names), key)] = self.attempt(value, names)
        return result

    def _value_binop(self, node: ast.BinOp, names: Names) -> Any:
        left = self.value(node.left, names)
        right = self.value(node.right, names)
        if isinstance(node.op, ast.Div):
            return posixpath.join(_text(left, node), _text(right, node))
        if isinstance(node.op, ast.Mod):
            values = [_text(each, node) for each in (right if isinstance(right, list) else [right])]
            return _filled(_text(left, node), r"%s", values, node)
        if not isinstance(node.op, ast.Add):
            raise Unknown(node)
        if isinstance(left, str | Text) and isinstance(right, str | Text):
            return Text((plain(left) + plain(right))[: _LONGEST_TEXT + 1], node.lineno)
        lists = as_list(left), as_list(right)
        if lists[0] is None or lists[1] is None:
            raise Unknown(node)
        return lists[0] + lists[1]

    def _value_subscript(self, node: ast.Subscript, names: Names) -> Any:
        held = self.value(node.value, names)
        if isinstance(held, Lines):
            return held
        key = self.value(node.slice, names)
        try:
            value = held[plain(key)]
        except (TypeError, LookupError) as error:
            raise Unknown(node) from error
        if isinstance(value, Unknown):
            raise value
        return value

    def _value_attribute(self, node: ast.Attribute, names: Names) -> Any:
        if ast.unparse(node) == "sys.version_info":
            return [3, 12]
        held = self.value(node.value, names)
        if node.attr == "parent" and isinstance(held, str | Text):
            return posixpath.dirname(plain(held))
        raise Unknown(node)

    def _value_ifexp(self, node: ast.IfExp, names: Names) -> Any:
        return self.value(node.body if self.value(node.test, names) else node.orelse, names)

    def _value_boolop(self, node: ast.BoolOp, names: Names) -> Any:
        value = None
        for each in node.values:
            value = self.value(each, names)
            if bool(plain(value)) == isinstance(node.op, ast.Or):
                break
        return value

    def _value_unaryop(self, node: ast.UnaryOp, names: Names) -> Any:
        value = self.value(node.operand, names)
        if isinstance(node.op, ast.Not) and not isinstance(value, Lines):
            return not plain(value)
        raise Unknown(node)

    def _value_compare(self, node: ast.Compare, names: Names) -> Any:
        compare = _COMPARISONS.get(type(node.ops[0]))
        left, right = (self.value(n, names) for n in (node.left, node.comparators[0]))
        if compare is None or len(node.ops) > 1 or isinstance(left, Lines):
            raise Unknown(node)
        try:
            return bool(compare(plain(left), plain(right)))
        except TypeError as error:
            raise Unknown(node) from error

    def _value_listcomp(self, node: Any, names: Names) -> Any:
        pairs = self._comprehended(node, [node.elt], names)
        return pairs if isinstance(pairs, Lines) else [each for (each,) in pairs]

    _value_setcomp = _value_generatorexp = _value_listcomp

    def _value_dictcomp(self, node: ast.DictComp, names: Names) -> Any:
        try:
            pairs = self._comprehended(node, [node.key, node.value], names)
            return {_text(key, node): value for key, value in pairs}
        except (Unknown, TypeError):
            # A table of requirements by their names, however it takes these apart.
            sources = [n for n in ast.walk(node.generators[0].iter) if isinstance(n, ast.Name)]
            for source in sources:
                items = names.get(source.id)
                if isinstance(items, list) and all(isinstance(i, Text) for i in items):
                    return {re.split(r"[ \[!=<>~;]", i.text, maxsplit=1)[0]: i for i in items}
            raise

    def _comprehended(self, node: Any, parts: list[ast.expr], names: Names) -> Any:
        if len(node.generators) != 1:
            raise Unknown(node)
        generator = node.generators[0]
        items = self.value(generator.iter, names)
        if isinstance(items, Lines):
            return items
        result = []
        inner = dict(names)
        for item in as_list(items) or ():
            self.assign(generator.target, item, inner)
            if all(plain(self.value(test, inner)) for test in generator.ifs):
                result.append([self.value(part, inner) for part in parts])
        return result

    def _list(self, node: ast.expr, names: Names) -> list[Any]:
        items = as_list(self.value(node, names))
        if items is None:
            raise Unknown(node)
        return items

    # Calls

    def _value_call(self, node: ast.Call, names: Names) -> Any:
        function = node.func
        own = names.get(function.id) if isinstance(function, ast.Name) else None
        if isinstance(own, ast.FunctionDef):
            return self.call(own, node, names)
        name, root = _dotted(function)
        if root and root not in names and (evaluate := _FUNCTIONS.get(name)):
            return evaluate(self, node, names)
        if root and root not in names and name in _PATHS:
            parts = [_text(self.value(argument, names), node) for argument in node.args]
            return self._path(name, parts, node)
        if isinstance(function, ast.Attribute):
            return self._method(self.value(function.value, names), function.attr, node, names)
        raise Unknown(node)

    def _opened(self, node: ast.Call, names: Names) -> Lines:
        if not node.args:
            raise Unknown(node)
        value = self.value(node.args[0], names)
        return value if isinstance(value, Lines) else Lines(_text(value, node), node.lineno)

    def _packages(self, node: ast.Call, names: Names) -> Any:
        wheres = [*node.args, *(k.value for k in node.keywords if k.arg == "where")]
        return [Lines(_text(self.value(each, names), node), node.lineno) for each in wheres[:1]]

    def _last(self, node: ast.Call, names: Names) -> Any:
        return self.value(node.args[-1], names) if node.args else []

    def _chained(self, node: ast.Call, names: Names) -> Any:
        return self._flat(self._value_list(ast.Tuple(node.args, ast.Load()), names))

    def _sum(self, node: ast.Call, names: Names) -> Any:
        return self._flat(self._list(node.args[0], names)) if node.args else []

    def _flat(self, lists: list[Any]) -> list[Any]:
        result: list[Any] = []
        for each in lists:
            result += (as_list(each) or [each])[: LONGEST_LIST - len(result) + 1]
        return result

    def _dict(self, node: ast.Call, names: Names) -> Any:
        return {k.arg: self.attempt(k.value, names) for k in node.keywords if k.arg}

    def _variable(self, node: ast.Call, names: Names) -> Any:
        """Return what a variable of the environment is that nobody has set."""
        if "env" not in ast.unparse(node.func):
            raise Unknown(node)
        return self.value(node.args[1], names) if len(node.args) > 1 else None

    def _path(self, name: str, parts: list[str], node: ast.AST) -> Any:
        if name in {"exists", "isfile", "is_file"} and parts:
            path = posixpath.normpath(posixpath.join(self._folder, parts[0]))
            return not path.startswith(("/", "..")) and exists(self._project, path)
        if name == "dirname" and parts:
            return posixpath.dirname(parts[0])
        if name == "getcwd":
            return ""
        return posixpath.normpath(posixpath.join("", *parts))

    def _method(self, held: Any, name: str, node: ast.Call, names: Names) -> Any:
        """Return the result of a method of a value."""
        if isinstance(held, Lines) or name == "copy":
            return held
        values = [self.value(argument, names) for argument in node.args]
        if isinstance(held, dict):
            pairs = {"values": held.values(), "keys": held, "items": map(list, held.items())}
            if name in pairs:
                return [*pairs[name]]
            return self._got(held, name, values, node)
        text = _text(held, node)
        texts = [_text(value, node) for value in values]
        if name in {"exists", "is_file"}:
            return self._path(name, [text], node)
        if name in {"open", "read_text", "read"}:
            return Lines(text, node.lineno)
        if name not in _METHODS or node.keywords:
            raise Unknown(node)
        try:
            return _METHODS[name](text, *texts)
        except (TypeError, ValueError) as error:
            raise Unknown(node) from error

    def _got(self, held: Names, name: str, values: list[Any], node: ast.AST) -> Any:
        if name != "get" or not values:
            raise Unknown(node)
        return held.get(_text(values[0], node), values[1] if values[1:] else None)

    def call(self, function: ast.FunctionDef, node: ast.Call, names: Names) -> Any:
        """Return what a function of the file returns for these arguments."""
        if self._depth >= _DEEPEST:
            raise Unknown(node)
        arguments = function.args
        parameters = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        inner = dict(names)
        defaults = [self.attempt(default, names) for default in arguments.defaults]
        inner.update(zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True))
        given = self._value_list(ast.Tuple(node.args, ast.Load()), names)
        inner.update(zip(parameters, given, strict=False))
        keywords = {k.arg: self.attempt(k.value, names) for k in node.keywords if k.arg}
        inner.update(keywords)
        if arguments.vararg:
            inner[arguments.vararg.arg] = given[len(parameters) :]
        result: Any = Unknown(node)
        self._depth += 1
        try:
            self.run(function.body, inner)
        except Returned as returned:
            result = returned.value
        finally:
            self._depth -= 1
        if not isinstance(result, Unknown) or any(map(is_setup, ast.walk(function))):
            return result
        # One that reads the file that it is called with, by means that are not understood here.
        opens = any(_dotted(n)[0] == "open" for n in ast.walk(function))
        texts = [v for p in parameters if isinstance(v := inner.get(p), str | Text)]
        named = [text for text in map(plain, texts) if re.search(r"\.(txt|in)\Z", str(text))]
        if opens and len(named) == 1:
            return Lines(str(named[0]), node.lineno)
        raise result


_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


def plain(value: Any) -> Any:
    """Return a value without its lines."""
    if isinstance(value, Text):
        return value.text
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _text(value: Any, node: ast.AST) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str | Text):
        raise Unknown(node)
    return value if isinstance(value, str) else value.text


def as_list(value: Any) -> list[Any] | None:
    """Return what a list of requirements may be written as; None if it can be none."""
    if isinstance(value, dict):
        return [*value]
    if isinstance(value, Lines | Text | str):
        return [value]
    return value if isinstance(value, list) else None


def _filled(text: str, field: str, values: Sequence[str], node: ast.AST) -> Text:
    """Return a text with its fields, in their order."""
    parts = re.split(field, text)
    if len(parts) != len(values) + 1 or "%" in "".join(parts) or "{" in "".join(parts):
        raise Unknown(node)
    pairs = zip(parts, [*values, ""], strict=True)
    filled = "".join(part for pair in pairs for part in pair)
    return Text(filled[: _LONGEST_TEXT + 1], getattr(node, "lineno", 1))


_FUNCTIONS: dict[str, Callable[[Values, ast.Call, Names], Any]] = {
    **dict.fromkeys(("open", "parse_requirements"), Values._opened),
    **dict.fromkeys(("find_packages", "find_namespace_packages"), Values._packages),
    # The result holds what the last argument does.
    **dict.fromkeys(("list", "tuple", "set", "sorted", "str", "filter", "map"), Values._last),
    "chain": Values._chained,
    **dict.fromkeys(("sum", "from_iterable"), Values._sum),
    "dict": Values._dict,
    **dict.fromkeys(("getenv", "get"), Values._variable),
}
"""Functions of Python and its library → what evaluates a call."""
_PATHS = frozenset(
    {
        "join",
        "dirname",
        "abspath",
        "realpath",
        "normpath",
        "Path",
        "getcwd",
        "exists",
        "isfile",
        "is_file",
    }
)
_METHODS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("resolve", "absolute", "expanduser", "as_posix"), lambda text: text),
    "joinpath": posixpath.join,
    "format": lambda text, *values: _filled(text, r"\{[0-9]*\}", values, ast.Pass()),
    "strip": str.strip,
    "rstrip": str.rstrip,
    "lstrip": str.lstrip,
    "lower": str.lower,
    "split": str.split,
    "splitlines": str.splitlines,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
"""Methods of texts and paths."""


def is_setup(node: ast.AST) -> bool:
    """Return whether an expression calls `setup`."""
    return isinstance(node, ast.Call) and _dotted(node.func)[0] == "setup"


def _dotted(node: ast.AST) -> tuple[str, str]:
    """Return the last and the first of names with dots between them; empty if it is none."""
    last = node.attr if isinstance(node, ast.Attribute) else ""
    while isinstance(node, ast.Attribute):
        node = node.value
    first = node.id if isinstance(node, ast.Name) else ""
    return (last or first, first) if first else ("", "")
