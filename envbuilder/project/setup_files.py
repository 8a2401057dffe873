"""Read setup.cfg, and setup.py by its syntax tree: nothing of a project runs.

Of setup.py, that counts which is written down: literals, names and lists of them, and requirement
files that it reads. What it computes while it runs is refused with its line, or noted if the rest
does not depend on it.
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.project.conda import read_pixi
from envbuilder.project.lines import Dropped, Listed, python_versions, read_text
from envbuilder.project.literals import (
    LONGEST_LIST,
    Lines,
    Names,
    Returned,
    Text,
    Unknown,
    Values,
    as_list,
    is_setup,
    plain,
)
from envbuilder.project.requirements_txt import read_lines
from envbuilder.project.tables import (
    Pyproject,
    chosen_names,
    pyproject,
    read_pyproject,
)

Taken = TypeVar("Taken")
_LARGEST = 256 << 10
"""Maximum size in bytes of a setup.py; the parser takes a hundred times as much memory."""


class _Stated(Struct):
    """What a package states; each list holds lines for pip, with their places."""

    requires: list[tuple[str, str]] | None = None
    extras: dict[str, list[tuple[str, str]]] = {}
    python: str = ""
    notes: list[str] = []


def read_setup(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return what a setup.cfg or setup.py requires, with some extras.

    What setup.py leaves to the setup.cfg beside it is read there. Raises `InvalidError`.
    """
    chosen_names("group", groups, (), file)
    is_python = file.endswith(".py")
    stated = evaluated(project, file, Module.stated) if is_python else _of_cfg(project, file)
    beside = posixpath.join(posixpath.dirname(file), "setup.cfg")
    other = _Stated()
    if is_python and (project / beside).is_file():
        other = _of_cfg(project, beside)
        stated.requires = other.requires if stated.requires is None else stated.requires
        stated.extras = stated.extras or other.extras
        stated.python = stated.python or other.python
    of_extra = {types.canonical(name): lines for name, lines in stated.extras.items()}
    lines = list(stated.requires or ())
    for name in sorted(chosen_names("extra", extras, of_extra, file)):
        lines += of_extra[name]
    listed = read_lines(project, file, lines)
    return replace(
        listed,
        itself=None,
        pythons=(*python_versions(stated.python, file), *listed.pythons),
        notes=(*stated.notes, *listed.notes),
    )


def read_project(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return what a pyproject.toml requires, with what it leaves to other files.

    Those are requirements files that it names, else setup.py or setup.cfg. Raises `InvalidError`.
    """
    tables = pyproject(read_text(project, file), file)
    if tables.tool.pixi and not (tables.project and tables.project.dependencies is not None):
        return read_pixi(project, file, extras, groups)
    if not tables.leaves_open(extras):
        return read_pyproject(project, file, extras, groups)
    of_extras = tables.project.optional_dependencies if tables.project else {}
    static = [each for each in extras if types.canonical(each) in map(types.canonical, of_extras)]
    others = [each for each in extras if each not in static]
    lines = list(_dynamic_lines(tables, file, others))
    if lines:
        open_parts = read_lines(project, file, lines)
    elif setup := _setup_beside(project, file):
        open_parts = read_setup(project, setup, others, ())
        open_parts = replace(open_parts, read_from=(*open_parts.read_from, setup))
    else:
        return read_pyproject(project, file, extras, groups)
    static_parts = read_pyproject(project, file, static, groups, is_open=True)
    return replace(
        open_parts,
        itself=None,
        requirements=(*static_parts.requirements, *open_parts.requirements),
        pythons=(*static_parts.pythons, *open_parts.pythons),
        notes=(*static_parts.notes, *open_parts.notes),
    )


def _dynamic_lines(
    tables: Pyproject, file: str, extras: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield lines that include the requirements files that a pyproject.toml names."""
    dynamic = tables.tool.setuptools.dynamic
    of_extras = dynamic.get("optional-dependencies")
    sources = {"dependencies": dynamic.get("dependencies")}
    for name, source in of_extras.items() if isinstance(of_extras, dict) else ():
        if types.canonical(str(name)) in map(types.canonical, extras):
            sources[f"optional-dependencies.{name}"] = source
    hooks = tables.tool.hatch.get("metadata", {})
    hooks = hooks.get("hooks", {}) if isinstance(hooks, dict) else {}
    hook = hooks.get("requirements_txt") if isinstance(hooks, dict) else None
    if isinstance(hook, dict):
        sources["tool.hatch.metadata.hooks.requirements_txt"] = {"file": hook.get("files")}
        more = hook.get("optional-dependencies")
        for name, files in more.items() if isinstance(more, dict) else ():
            if types.canonical(name) in map(types.canonical, extras):
                sources[f"optional-dependencies.{name}"] = {"file": files}
    for key, source in sources.items():
        named = source.get("file") if isinstance(source, dict) else None
        for each in [named] if isinstance(named, str) else named or ():
            yield f"{escaped(file)}: {escaped(key, 80)}", f"-r {shlex.quote(str(each))}"


def _setup_beside(project: Path, file: str) -> str:
    """Return the file of setuptools beside a pyproject.toml; empty if there is none."""
    for name in ("setup.py", "setup.cfg"):
        path = posixpath.join(posixpath.dirname(file), name)
        if (project / path).is_file():
            return path
    return ""


# setup.cfg


def cfg_sections(project: Path, file: str) -> dict[str, dict[str, str]]:
    """Return the sections of a setup.cfg, in whose keys an underscore stands for each hyphen."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_text(project, file), escaped(file))
    except configparser.Error as error:
        problem = escaped(str(error).partition("\n")[0], 200)
        raise InvalidError(f"{escaped(file)}: cannot be read: {problem}") from error
    return {
        name: {key.replace("-", "_"): value for key, value in section.items()}
        for name, section in parser.items()
    }


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


def evaluated(project: Path, file: str, take: Callable[[Module], Taken]) -> Taken:
    """Return what `take` gets of a module of the project. Raise `InvalidError` if it is unreadable.

    Nothing of it runs.
    """
    text = read_text(project, file, _LARGEST)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise InvalidError(f"{escaped(file)}{line}: not valid Python 3") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise InvalidError(f"{escaped(file)}: cannot be parsed") from error
    module = Module(project, file)
    try:
        with suppress(Returned):
            module.run(tree.body, module.names)
        return take(module)
    except RecursionError as error:
        raise InvalidError(f"{escaped(file)}: nested too deeply") from error


class Module(Values):
    """Evaluates the little of a module that needs no machine to run on."""

    def __init__(self, project: Path, file: str) -> None:
        super().__init__(project, file)
        self.setup: Names | None = None
        """What `setup` is called with, if it is."""
        self._notes: list[str] = []
        self.names: Names = {"__name__": "__main__", "__file__": posixpath.basename(file)}

    def stated(self) -> _Stated:
        """Return what the call of `setup` states; raise `InvalidError` if it is computed."""
        if self.setup is None:
            self.refuse(1, "no call of setup() is found")
        keywords = self.setup
        requires = keywords.get("install_requires")
        extras = keywords.get("extras_require") or {}
        result = _Stated(notes=self._notes)
        if "install_requires" in keywords:
            result.requires = self._lines(requires, "install_requires")
        if isinstance(extras, dict):
            for name, value in extras.items():
                with suppress(InvalidError):  # of an extra that is not chosen, most often
                    # `:marker` is an extra that holds wherever the marker is true.
                    extra, _, marker = str(name).partition(":")
                    lines = self._lines(value, f"extras_require {escaped(extra, 60)}")
                    if not extra and marker:
                        lines = [(where, f"{text}; {marker}") for where, text in lines]
                        result.requires = [*(result.requires or ()), *lines]
                    result.extras[extra] = lines
        python = plain(keywords.get("python_requires"))
        result.python = python if isinstance(python, str) else ""
        return result

    def _lines(self, value: Any, key: str) -> list[tuple[str, str]]:
        """Return requirements as lines for pip."""
        if isinstance(value, Unknown):
            self.refuse(value.line, f"{key} is computed while it runs")
        result = []
        for item in as_list(value) or ():
            where = f"{escaped(self.file)}: {key}"
            if isinstance(item, Text | Lines):
                where = f"{escaped(self.file)}:{item.line}"
            if isinstance(item, Lines):
                result.append((where, f"-r {shlex.quote(item.path)}"))
            elif isinstance(item, str | Text):
                result += [(where, each) for each in plain(item).splitlines()]
            else:
                place = f":{item.line}" if isinstance(item, Unknown) else f": {key}"
                self._notes.append(
                    Dropped(
                        f"{escaped(self.file)}{place}: a requirement that is computed while it"
                        " runs: left out."
                    )
                )
        return result

    # ---- statements

    def run(self, body: Sequence[ast.stmt], names: Names) -> None:
        """Run statements as far as they change names; raises `Returned`."""
        for statement in body:
            self.step()
            method = getattr(self, f"_run_{type(statement).__name__.lower()}", None)
            if method:
                method(statement, names)
            else:
                self._forget(statement, names)

    def _forget(self, statement: ast.stmt, names: Names) -> None:
        """Forget what a statement may change."""
        for name in _changed(statement):
            names[name] = Unknown(statement)

    def _run_import(self, statement: ast.stmt, names: Names) -> None:
        """Modules are known by the names that are used of them."""

    _run_importfrom = _run_classdef = _run_pass = _run_assert = _run_import

    def _run_functiondef(self, statement: ast.FunctionDef, names: Names) -> None:
        names[statement.name] = statement

    def _run_return(self, statement: ast.Return, names: Names) -> None:
        raise Returned(self.attempt(statement.value, names))

    def _run_assign(self, statement: ast.Assign, names: Names) -> None:
        value = self.attempt(statement.value, names)
        for target in statement.targets:
            self.assign(target, value, names)

    def _run_annassign(self, statement: ast.AnnAssign, names: Names) -> None:
        if statement.value:
            self.assign(statement.target, self.attempt(statement.value, names), names)

    def _run_augassign(self, statement: ast.AugAssign, names: Names) -> None:
        sum_of = ast.BinOp(statement.target, statement.op, statement.value)
        ast.copy_location(sum_of, statement)
        self.assign(statement.target, self.attempt(sum_of, names), names)

    def _run_expr(self, statement: ast.Expr, names: Names) -> None:
        call = statement.value
        if not isinstance(call, ast.Call):
            return
        if is_setup(call):
            self._take_setup(call, names)
            return
        function = call.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            held = names.get(function.value.id)
            values = [self.attempt(argument, names) for argument in call.args]
            names.update(_mutated(function.value.id, function.attr, held, values))
        elif isinstance(function, ast.Name):
            called = names.get(function.id)
            if isinstance(called, ast.FunctionDef) and any(map(is_setup, ast.walk(called))):
                with suppress(Unknown):
                    self.call(called, call, names)

    def _take_setup(self, call: ast.Call, names: Names) -> None:
        keywords: Names = {}
        for keyword in call.keywords:
            value = self.attempt(keyword.value, names)
            if keyword.arg is None:
                keywords.update(value if isinstance(value, dict) else {})
            else:
                keywords[keyword.arg] = value
        self.setup = {**(self.setup or {}), **keywords}

    def _run_if(self, statement: ast.If, names: Names) -> None:
        test = self.attempt(statement.test, names)
        if not isinstance(test, Unknown):
            self.run(statement.body if plain(test) else statement.orelse, names)
            return
        if any(is_setup(node) for node in ast.walk(statement)):
            self.run([*statement.body, *statement.orelse], names)
            return
        before = dict(names)
        branches = []
        for body in (statement.body, statement.orelse):
            branch = dict(before)
            with suppress(Returned):
                self.run(body, branch)
            branches.append(branch)
        for name in {**branches[0], **branches[1]}:
            left, right = (branch.get(name) for branch in branches)
            if left is not right and left != right:
                earlier = before.get(name)
                names[name] = Unknown(statement) if earlier is None else earlier
                if isinstance(earlier, list):
                    names[name] = [*earlier, Unknown(statement)]
            elif name not in names:
                names[name] = left

    def _run_for(self, statement: ast.For, names: Names) -> None:
        items = self.attempt(statement.iter, names)
        if isinstance(items, Lines):
            for name in _changed(statement):
                held = names.get(name)
                names[name] = [*held, items] if isinstance(held, list) else Unknown(statement)
        elif isinstance(items, list):
            for item in items:
                self.assign(statement.target, item, names)
                self.run(statement.body, names)
        else:
            self._forget(statement, names)

    def _run_with(self, statement: ast.With, names: Names) -> None:
        for item in statement.items:
            if item.optional_vars:
                self.assign(item.optional_vars, self.attempt(item.context_expr, names), names)
        self.run(statement.body, names)

    def _run_try(self, statement: ast.Try, names: Names) -> None:
        self.run([*statement.body, *statement.orelse, *statement.finalbody], names)


def _mutated(name: str, method: str, held: Any, values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield a name with its new value, if a method changes it."""
    if isinstance(held, list) and method in {"append", "extend", "insert"} and values:
        more = as_list(values[0]) if method == "extend" else [values[-1]]
        yield name, [*held, *(more if more is not None else values)][: LONGEST_LIST + 1]
    elif isinstance(held, dict) and method == "update" and values:
        yield name, {**held, **(values[0] if isinstance(values[0], dict) else {})}


def _changed(statement: ast.stmt) -> set[str]:
    """Return the names that a statement may change."""
    result = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            result.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in {"append", "extend", "insert", "update", "add"}
        ):
            result.add(node.value.id)
    return result
