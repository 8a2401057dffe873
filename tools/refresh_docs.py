"""Write the generated files of `docs/reference`: commands, profile, lock, report and its schema.

The table of what runs where is there, too, and in short in README.md (`tools/matrix.py`).

    make docs

Commands come from Click, the keys of profiles, locks and reports from the structures that read
them, with the docstrings of their fields. A test compares the pages with what this makes.
"""

from __future__ import annotations

import ast
import copy
import inspect
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder import cli
from envbuilder.core import types
from envbuilder.profiles import lock, locked_file, profile
from envbuilder.verify.report import environment, measurements, model
from tools import matrix

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

FOLDER = matrix.REPOSITORY / "docs" / "reference"
README = matrix.REPOSITORY / "README.md"
MADE = "<!-- Made by tools/refresh_docs.py (make docs) from docstrings: change those. -->\n"
MATRIX = "<!-- Made by tools/refresh_docs.py (make docs) from profiles, locks and runs.yaml. -->\n"
PROFILE = """\
# Profiles

A profile says what a kind of hardware needs. Shipped ones are in `profiles/`; your own are in
`profiles/NAME.yaml` next to your `envbuilder.yaml` or in your configuration folder. `extends:`
takes over another profile: mappings are merged key by key, every other value is replaced, and
`add_requirements:` adds to the inherited `requirements:`. Bases of Python versions that the profile
does not support are not inherited. Unknown keys are refused with file, line and a suggestion.

```yaml
# profiles/mine.yaml
extends: cpu
description: What train.py needs
add_requirements: [einops, numpy]
```
"""
LOCK = """\
# Locks

`envbuilder lock` writes `NAME.json` into `profiles/locks/`: every file of every target, by sha256
and symbolic source, one file a line. A lock is fresh while the parts of the profile that decide
what is installed are those it was made from (`lock --check`).
"""
REPORT = """\
# Reports

`envbuilder verify --json`, `--output FILE` and the history in the data folder hold the same object:
what the payload reports ([Measured](#measured)) and, on the same level, what envbuilder knows of
the environment ([Report](#report)). envbuilder checks and relies on the keys below; a payload may
write others, which are kept as they are.

[`report.schema.json`](report.schema.json) says the same as a JSON schema. Beyond it, no number is
NaN or infinite, and a report with `status: passed` contradicts neither itself nor its request.
"""


def pages() -> dict[str, str]:
    """Return the generated files by name."""
    about_reports = (model, environment, measurements)
    return {
        "commands.md": MADE + commands(),
        "profile.md": MADE + PROFILE + "".join(structs(profile)) + _kinds(),
        "lock.md": MADE + LOCK + "".join(structs(lock)) + "".join(structs(locked_file)),
        "report.md": MADE + REPORT + "".join(s for m in about_reports for s in structs(m)),
        "report.schema.json": report_schema(),
        "matrix.md": MATRIX + matrix.page(matrix.shipped()),
    }


def report_schema() -> str:
    """Return the JSON schema of a report."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of `envbuilder verify`",
        **msgspec.json.schema(model.Report),
    }
    encoded = msgspec.json.encode(schema, order="deterministic")
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def commands() -> str:
    """Return every command's help, as `--help` prints it."""
    parts = ["# Commands\n", _help(cli.cli, "envbuilder")]
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        parts.append(_help(command, f"envbuilder {name}"))
        for inner, below in sorted(getattr(command, "commands", {}).items()):
            parts.append(_help(below, f"envbuilder {name} {inner}"))
    return "\n".join(parts)


def _help(command: click.Command, name: str) -> str:
    command = copy.copy(command)
    # Click keeps the help option of the first context, whichever names that one had.
    command._help_option = None
    # Commands get these settings from the group when they are run.
    settings = {**cli.cli.context_settings, "terminal_width": 78}
    context = click.Context(command, info_name=name, **settings)
    return f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"


def structs(module: ModuleType) -> Iterator[str]:
    """Yield a section for each public structure of a module, the one that holds the others first.

    It has the structure's docstring and a row for each of its keys.
    """
    body = ast.parse(inspect.getsource(module)).body
    classes = [n for n in body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    for node in [*classes[-1:], *classes[:-1]]:
        rows = list(_rows(node))
        if not rows:
            continue
        about = inspect.cleandoc(ast.get_docstring(node) or "")
        lines = ["| key | value | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | {_cell(kind)} | {_cell(text)} |" for key, kind, text in rows]
        yield f"\n## {node.name}\n\n{about}\n\n" + "\n".join(lines) + "\n"


def _rows(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for place, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        default = "" if statement.value is None else ast.unparse(statement.value)
        yield statement.target.id, _type(statement.annotation), _with_default(meaning, default)


def _with_default(meaning: str, default: str) -> str:
    if default in {"", "None", "()", "{}", "''"} or "(" in default:
        return meaning
    shown = {"False": "false", "True": "true"}.get(default, default.strip("'"))
    return f"{meaning} Default: `{shown}`.".strip()


def _type(node: ast.expr) -> str:  # noqa: PLR0911 (one return per form reads best)
    """Put an annotation into words."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{_type(left)} or {_type(right)}"
        case ast.Constant(value=None):
            return "nothing"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, *_])):
            return f"list of: {_type(inner)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"mapping: {_type(key)} → {_type(value)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return " or ".join(f"`{ast.literal_eval(v)}`" for v in values)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            return _type(inner)
        case ast.Attribute(attr=name):
            return _alias(name)
        case ast.Name(id=name):
            return _NAMES.get(name, f"[{name}](#{name.lower()})")
    return ast.unparse(node)


_NAMES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "`true` or `false`",
    "Any": "anything",
    "Positive": "number",
    "NotNegative": "number",
    "Count": "whole number",
    "Size": "whole number",
    "_CpuFlag": "name of a CPU flag",
}


def _alias(name: str) -> str:
    alias: Any = getattr(types, name)
    for meta in getattr(alias, "__metadata__", ()):
        if meta.description:
            return str(meta.description)
    values = getattr(alias, "__args__", ())
    if values and all(isinstance(v, str) for v in values):
        return " or ".join(f"`{v}`" for v in values)
    return name


def _kinds() -> str:
    return (
        "\n## Names of indexes\n\nThe symbolic sources that `indexes:` may name are"
        " [those that envbuilder knows](../guides/mirrors.md)\nand those that `indexes:` of your"
        " configuration or `ENVBUILDER_INDEX_NAME` gives a URL.\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    README.write_text(matrix.readme(README.read_text()))


if __name__ == "__main__":
    main()
