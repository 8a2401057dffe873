"""Read setup.cfg, and setup.py from its syntax tree, without running any of a project's code.

From setup.py, only literals and the requirements files that it reads are used. Users must write any
value that setup.py computes in `envbuilder.yaml` or another file.
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.project.conda import read_pixi
from envbuilder.project.lines import Listed, Needed, joined, python_versions, read_text
from envbuilder.project.requirements_txt import read_lines
from envbuilder.project.tables import (
    Pyproject,
    as_list,
    chosen_names,
    mapping,
    pyproject,
    read_pyproject,
)

_LARGEST = 256 << 10
"""Maximum size in bytes of a setup.py. The parser needs about a hundred times as much memory."""


class ComputedError(InvalidError):
    """Error raised if a value in setup.py can only be determined by running the file."""


class _Stated(Struct):
    """The values that a file specifies for a package.

    `requires` and `extras` contain lines for pip, each as a pair of the line's place and its text.
    """

    requires: list[tuple[str, str]] | None = None
    extras: dict[str, list[tuple[str, str]]] = {}
    python: str = ""
    notes: list[str] = []


def read_setup(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Read the requirements in a setup.cfg or setup.py, including those of the chosen extras.

    Values that are not in setup.py are read from the setup.cfg in the same folder. Raise
    `InvalidError` if a value cannot be read.
    """
    chosen_names("group", groups, (), file)
    is_python = file.endswith(".py")
    values = _of_python(project, file, extras) if is_python else _of_cfg(project, file)
    beside = posixpath.join(posixpath.dirname(file), "setup.cfg")
    other = _Stated()
    if is_python and (project / beside).is_file():
        other = _of_cfg(project, beside)
        if values.requires is None:
            values.requires = other.requires
        values.extras = values.extras or other.extras
        values.python = values.python or other.python
    of_extra = {types.canonical(name): lines for name, lines in values.extras.items()}
    lines = list(values.requires or ())
    for name in sorted(chosen_names("extra", extras, of_extra, file)):
        lines += of_extra[name]
    about = Listed(pythons=python_versions(values.python, file), notes=tuple(values.notes))
    return replace(joined([about, read_lines(project, file, lines)]), itself=None)


def read_project(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Read the requirements in a pyproject.toml, including those that are in other files.

    The other files are the requirements files that pyproject.toml refers to or, if there are none,
    setup.py or setup.cfg. Raise `InvalidError` if a file is invalid.
    """
    text = read_text(project, file)
    tables = pyproject(text, file)
    if tables.tool.pixi and not (tables.project and tables.project.dependencies is not None):
        return read_pixi(project, file, extras, groups)
    read_tables = partial(read_pyproject, tables, project, file, text)
    if not tables.leaves_open(extras):
        return read_tables(extras, groups)
    of_extras = {*map(types.canonical, tables.about.optional_dependencies)}
    static = [each for each in extras if types.canonical(each) in of_extras]
    others = [each for each in extras if each not in static]
    lines = list(_dynamic_lines(tables, file, others))
    if lines:
        open_parts = read_lines(project, file, lines)
    elif setup := _setup_beside(project, file):
        open_parts = read_setup(project, setup, others, ())
    else:
        return read_tables(extras, groups)
    return replace(joined([read_tables(static, groups, is_open=True), open_parts]), itself=None)


def _dynamic_lines(
    tables: Pyproject, file: str, extras: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield a pair for each requirements file that a pyproject.toml lists.

    The pair consists of the place where pyproject.toml lists the file, and of a line that makes pip
    read the file.
    """
    dynamic = tables.tool.setuptools.dynamic
    hooks = mapping(mapping(tables.tool.hatch.get("metadata")).get("hooks"))
    hook = mapping(hooks.get("requirements_txt"))
    sources = {
        "dependencies": mapping(dynamic.get("dependencies")).get("file"),
        "tool.hatch.metadata.hooks.requirements_txt": hook.get("files"),
    }
    of_extras = {**mapping(hook.get("optional-dependencies"))}
    for name, source in mapping(dynamic.get("optional-dependencies")).items():
        of_extras.setdefault(name, mapping(source).get("file"))
    for name, files in of_extras.items():
        if types.canonical(name) in map(types.canonical, extras):
            sources[f"optional-dependencies.{name}"] = files
    for key, files in sources.items():
        for path in as_list(files or []):
            yield f"{escaped(file)}: {escaped(key, 80)}", f"-r {shlex.quote(str(path))}"


def _setup_beside(project: Path, file: str) -> str:
    """Return the path of the setup.py or setup.cfg in the same folder as a pyproject.toml.

    Return an empty string if there is neither.
    """
    for name in ("setup.py", "setup.cfg"):
        path = posixpath.join(posixpath.dirname(file), name)
        if (project / path).is_file():
            return path
    return ""


# setup.cfg


def cfg_sections(project: Path, file: str) -> dict[str, dict[str, str]]:
    """Read the sections of a setup.cfg, replacing hyphens in keys with underscores.

    Raise `InvalidError` if the file cannot be read.
    """
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_text(project, file), escaped(file))
    except configparser.Error as error:
        problem = escaped(str(error).partition("\n")[0], 200)
        raise InvalidError(f"{escaped(file)}: cannot be read: {problem}") from error
    sections = dict[str, dict[str, str]]()
    for name, section in parser.items():
        sections[name] = {key.replace("-", "_"): value for key, value in section.items()}
    return sections


def _of_cfg(project: Path, file: str) -> _Stated:
    sections = cfg_sections(project, file)
    options = sections.get("options", {})
    requires = options.get("install_requires")
    return _Stated(
        requires=None if requires is None else _cfg_lines(requires, file, "install_requires"),
        extras={
            name: _cfg_lines(value, file, f"extras_require {name}")
            for name, value in sections.get("options.extras_require", {}).items()
        },
        python=options.get("python_requires", "").strip(),
    )


def _cfg_lines(value: str, file: str, key: str) -> list[tuple[str, str]]:
    where = f"{escaped(file)}: {escaped(key, 60)}"
    if value.strip().startswith("file:"):
        files = value.strip().removeprefix("file:").replace("\n", ",").split(",")
        return [(where, f"-r {shlex.quote(each.strip())}") for each in files if each.strip()]
    items = value.splitlines() if "\n" in value.strip() else value.split(";\n")
    return [(where, item) for item in items]


# setup.py
#
# Understood are texts, lists, dicts, names, `+`, paths, and functions that read one file. What a
# statement of any other kind sets becomes unknown, and what it may add to a list or dict is.

_MOST_STEPS = 200_000
"""Maximum number of expressions that are evaluated in an untrusted setup.py.

The expressions in a function count once for each call.
"""
_LONGEST = 20_000
"""Maximum number of items in a list, or of characters in a string, that a setup.py may build."""
REST = "**"
"""Key that stands for all further items of a dict, whose keys and values are unknown."""


class Unknown(Struct, frozen=True):
    """A value that can only be determined by running the file."""

    line: int


class Text(Struct, frozen=True):
    """A string in the file, and its line number."""

    text: str
    line: int


class FileReference(Struct, frozen=True):
    """A file whose content is used as a value, and the number of the line that reads the file."""

    path: str
    line: int


Names = dict[str, Any]
"""Type of the values of variables or arguments, by name.

A value is a `Text`, a `FileReference`, an `Unknown`, a function, or a list or dict of values.
"""


class StaticReader:
    """Evaluator that determines the values in a Python file without running any of its code."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.names: Names = {"__file__": Text(posixpath.basename(file), 1)}
        self.setup: Names | None = None
        """The arguments passed to `setup`, or None if the file does not call `setup`."""
        self._steps = 0

    def refuse(self, line: int, what: str) -> NoReturn:
        """Raise `ComputedError` for a value that can only be determined by running the file."""
        raise ComputedError(
            f"{escaped(self.file)}:{line}: {what}",
            "Write the requirements under requirements: in envbuilder.yaml, or into another file"
            " that you list under requirements_from:.",
        )

    def _step(self, count: int) -> None:
        """Add to the number of evaluated expressions; raise `ComputedError` if it is too large."""
        self._steps += count
        if self._steps > _MOST_STEPS:
            self.refuse(1, "the file computes too much to be evaluated")

    def read(self, body: Iterable[ast.stmt]) -> None:
        """Evaluate the statements, and store the values that they assign in `names`."""
        for statement in body:
            match statement:
                case ast.ClassDef() | ast.Return():
                    pass
                case ast.If() | ast.Try() | ast.FunctionDef() if _calls(
                    {"setup"}, ast.walk(statement)
                ):
                    self.read([*statement.body, *getattr(statement, "orelse", ())])
                case ast.FunctionDef(name=name):
                    self.names[name] = statement
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self.names[name] = self.value(value)
                case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), *_])], value=value):
                    # Of a function that reads a file, the requirements come before the rest.
                    first = _file(self.value(value), value)
                    _forget(statement, self.names)
                    self.names[name] = first
                case ast.With(
                    items=[ast.withitem(context_expr=value, optional_vars=ast.Name(id=name))],
                    body=inner,
                ):
                    self.names[name] = self.value(value)
                    self.read(inner)
                case ast.Expr(value=ast.Call(func=func) as call) if _name(func) == "setup":
                    if self.setup is not None:
                        self.refuse(call.lineno, "setup() is called a second time")
                    self.setup = self._keywords(call)
                case _:
                    _forget(statement, self.names)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or `Unknown` if the expression cannot be evaluated."""
        self._step(1)
        value: Any = Unknown(node.lineno)
        match node:
            case ast.Constant(value=str(text)):
                value = Text(text, node.lineno)
            case ast.Name(id=name):
                value = self.names.get(name, value)
            case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Set(elts=nodes):
                value = self._items(nodes)
            case ast.Dict(keys=keys, values=nodes):
                value = self._table([*map(self._key, keys)], nodes)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                value = _sum(self.value(left), self.value(right), node)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                value = _path("join", self._items([left, right]), node)
            case ast.Attribute(value=held, attr="parent"):
                value = _path("dirname", [self.value(held)], node)
            case ast.Subscript(value=held, slice=key):
                value = _item(self.value(held), self.value(key), node)
            case ast.ListComp(generators=[each]) | ast.GeneratorExp(generators=[each]):
                value = _file(self.value(each.iter), node)
            case ast.Call():
                value = self._result(node)
        if len(value if isinstance(value, list) else text_of(value)) > _LONGEST:
            self.refuse(node.lineno, "a value that is too long to be read")
        return value

    def _items(self, nodes: Iterable[ast.expr]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += as_list(self.value(node.value))
            else:
                items.append(self.value(node))
        return items

    def _key(self, node: ast.expr | None) -> str:
        key = self.value(node) if node else None
        return key.text if isinstance(key, Text) else REST

    def _table(self, keys: Iterable[str], nodes: Iterable[ast.expr]) -> Names:
        table: Names = {}
        for key, node in zip(keys, nodes, strict=True):
            value = self.value(node)
            if key == REST and isinstance(value, dict):
                table |= value
            else:
                table[key] = value
        return table

    def _keywords(self, call: ast.Call) -> Names:
        keys = [keyword.arg or REST for keyword in call.keywords]
        return self._table(keys, [keyword.value for keyword in call.keywords])

    def _result(self, call: ast.Call) -> Any:
        """Return the result of a function call, or `Unknown` if the call cannot be evaluated."""
        name = _name(call.func)
        if isinstance(call.func, ast.Name) and isinstance(
            function := self.names.get(name), ast.FunctionDef
        ):
            return self._file_of_function(function, call)
        values = self._items(call.args)
        if isinstance(call.func, ast.Attribute):
            held = self.value(call.func.value)
            if isinstance(held, FileReference):  # .read().splitlines()
                return held
            if isinstance(held, Text):  # a method of a path
                values.insert(0, held)
        if name == "dict" and not values:
            return self._keywords(call)
        if name in _OPENING and values and isinstance(values[0], Text):
            return FileReference(posixpath.normpath(values[0].text), call.lineno)
        if name in _OPENING | _COPYING and values:
            return _file(values[-1], call)
        return _path(name, values, call)

    def _file_of_function(
        self, function: ast.FunctionDef, call: ast.Call
    ) -> FileReference | Unknown:
        """Return the file that a function reads, or `Unknown` if it does not read exactly one.

        Also return `Unknown` if the function lists packages. The path comes from the arguments of
        the call or, if there are none, from the function's defaults or body.
        """
        nodes = [*ast.walk(function)]
        self._step(len(nodes) + len(self.names))
        readers = _calls(_OPENING, nodes)
        if len(readers) != 1 or any(map(_lists_packages, nodes)):
            return Unknown(call.lineno)
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if texts := [*filter(text_of, self._items(arguments or function.args.defaults))]:
            path = posixpath.join(*map(text_of, texts))
            return FileReference(posixpath.normpath(path), call.lineno)
        parameters = [node.arg for node in nodes if isinstance(node, ast.arg)]
        inner = StaticReader(self.file)
        inner.names = self.names | dict.fromkeys(parameters, Unknown(call.lineno))
        return _file(inner.value(readers[0]), call)


_OPENING = frozenset({"open", "read_text", "parse_requirements"})
"""Functions that read a file. The file is given by the first argument or by the path object."""
_COPYING = frozenset({"list", "tuple", "set", "sorted", "map", "filter"})
"""Functions that return the lines in their last argument almost unchanged."""
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
"""Functions that build a path from other paths. All paths are relative to the folder of
setup.py."""


def _name(node: ast.expr) -> str:
    """Return the last component of a dotted name, or an empty string for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _calls(names: Collection[str], nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """Return the nodes that call a function with one of these names."""
    return [each for each in nodes if isinstance(each, ast.Call) and _name(each.func) in names]


def _forget(statement: ast.stmt, names: Names) -> None:
    """Mark values in `names` as unknown if a statement may assign or append to them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            value = names.get(node.id)
            for value_part in [value, *(value.values() if isinstance(value, dict) else ())]:
                if isinstance(value_part, list):
                    value_part.append(Unknown(node.lineno))
            if isinstance(value, dict):
                value[REST] = Unknown(node.lineno)
            grows = isinstance(statement, ast.AugAssign) and isinstance(value, list)
            if isinstance(value, FileReference) or not (grows or isinstance(node.ctx, ast.Load)):
                names[node.id] = Unknown(node.lineno)


def _lists_packages(node: ast.AST) -> bool:
    """Return whether a node is a list that may contain packages, or appends to such a list."""
    items: list[ast.expr] = []
    if isinstance(node, ast.List):
        items = node.elts
    elif isinstance(node, ast.Call) and _name(node.func) in {"add", "append", "insert"}:
        items = node.args
    for item in items:
        match item:
            case ast.Constant(value=str(text)) if text[:1].isalnum():
                return True
    return False


def _file(value: Any, node: ast.expr) -> FileReference | Unknown:
    return value if isinstance(value, FileReference) else Unknown(node.lineno)


def _path(name: str, parts: Sequence[Any], node: ast.expr) -> Text | Unknown:
    """Return the result of a path function such as `dirname`.

    Return `Unknown` if the result cannot be determined.
    """
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
    """Return the string in a `Text`, or an empty string for any other value."""
    return value.text if isinstance(value, Text) else ""


def read_python(project: Path, file: str) -> StaticReader:
    """Evaluate a Python file in a project, and return the reader with the values.

    Raise `InvalidError` if the file cannot be read.
    """
    text = read_text(project, file, _LARGEST)
    reader = StaticReader(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        reader.read(tree.body)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise ComputedError(f"{escaped(file)}{line}: not valid Python 3") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise ComputedError(f"{escaped(file)}: cannot be parsed") from error
    return reader


def _of_python(project: Path, file: str, extras: Sequence[str]) -> _Stated:
    """Return the values in a setup.py, including only the chosen ones of its extras."""
    reader = read_python(project, file)
    keywords = reader.setup
    if keywords is None:
        reader.refuse(1, "there is no call of setup()")
    rest = keywords.get(REST)
    requires = keywords.get("install_requires", rest)
    of_extras = keywords.get("extras_require", rest or {})
    if not isinstance(of_extras, dict):
        of_extras = {REST: of_extras}
    values = _Stated(python=text_of(keywords.get("python_requires")))
    if requires is not None:
        values.requires = _python_lines(reader, requires, "install_requires", values.notes)
    chosen = {"", *map(types.canonical, extras)}
    computed = of_extras.pop(REST, None)
    for key, value in of_extras.items():
        # `:marker` stands for what everybody needs where the marker is true.
        name, _, marker = key.partition(":")
        lines = values.extras.setdefault(name, [])
        if types.canonical(name) in chosen:
            what = f"extras_require {escaped(key, 60)}"
            for where, text in _python_lines(reader, value, what, values.notes):
                lines.append((where, "; ".join(filter(None, (text, marker)))))
    if computed is not None and chosen - {"", *map(types.canonical, values.extras)}:
        reader.refuse(getattr(computed, "line", 1), "extras_require is computed at run time")
    if everywhere := values.extras.pop("", None):
        values.requires = [*(values.requires or ()), *everywhere]
    return values


def _python_lines(
    reader: StaticReader, value: Any, key: str, notes: list[str]
) -> list[tuple[str, str]]:
    """Convert the requirements in a setup.py to lines for pip, each with its place.

    Notes on requirements that cannot be determined are appended to `notes`. Raise `ComputedError`
    if there are requirements, but none of them can be determined.
    """
    items = as_list(value)
    if items and not any(isinstance(item, Text | FileReference) for item in items):
        reader.refuse(getattr(items[0], "line", 1), f"{key} is computed at run time")
    lines = []
    for item in items:
        where = f"{escaped(reader.file)}:{getattr(item, 'line', f' {key}')}"
        if isinstance(item, FileReference):
            lines.append((where, f"-r {shlex.quote(item.path)}"))
        elif isinstance(item, Text):
            lines += [(where, text) for text in item.text.splitlines()]
        else:
            notes.append(
                Needed(
                    f"{where}: left out a requirement that is computed at run time. Write it"
                    " under requirements: in envbuilder.yaml."
                )
            )
    return lines
